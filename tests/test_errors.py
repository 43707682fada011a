import errno
from pathlib import Path

import pytest

from hyperslab.errors import UserError, disk_error, exit_code


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_with_the_room_that_is_needed(number: int) -> None:
    error = disk_error(OSError(number, "full"), Path("/scratch/store"), need_bytes=1_234_567)
    assert isinstance(error, UserError)
    assert str(error).startswith("/scratch/store: no space left on the disk (1,234,567 bytes are needed)")
    assert "hyperslab resume" in str(error)


def test_room_that_is_not_known_is_not_said() -> None:
    error = disk_error(OSError(errno.ENOSPC, "full"), "/scratch/store")
    assert error is not None
    assert "bytes" not in str(error)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_place_that_may_not_be_written_is_said_with_its_reason(number: int) -> None:
    error = disk_error(OSError(number, "the reason"), "/sys/store")
    assert isinstance(error, UserError)
    assert "/sys/store: cannot be written: the reason; choose a directory you may write to" in str(error)


def test_an_operating_system_error_that_no_person_can_mend_is_not_explained_away() -> None:
    assert disk_error(OSError(errno.EIO, "input/output error"), "/scratch/store") is None


def test_a_persons_mistake_ends_with_code_2_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        raise UserError("campaign.yaml: no such file; check the path")

    assert exit_code(body) == 2
    captured = capsys.readouterr()
    assert captured.err == "hyperslab: campaign.yaml: no such file; check the path\n"
    assert captured.out == ""


def test_a_body_that_ends_well_gives_its_own_code() -> None:
    assert exit_code(lambda: 3) == 3


def test_an_error_of_the_program_is_not_passed_off_as_a_persons() -> None:
    def body() -> int:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        exit_code(body)
