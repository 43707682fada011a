import numpy as np
import pytest

from hyperslab.data.sources.fmri import text
from hyperslab.data.sources.fmri.text import read_columns, read_text
from hyperslab.errors import UserError


def table(tmp_path, content: str | bytes, name: str = "table.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_first_line_of_names_makes_the_columns_parcels(tmp_path):
    sheet = read_text(table(tmp_path, '"V1","M1"\n1,2\n3,n/a\n5,6\n'), None)
    assert sheet.names == ("V1", "M1")
    assert sheet.time_axis == 0
    np.testing.assert_array_equal(sheet.values, [[1, 2], [3, np.nan], [5, 6]])


def test_names_behind_a_hash_are_names(tmp_path):
    sheet = read_text(table(tmp_path, "#1\t#2\n1.5\t2\n3\t4\n", "rois.1D"), None)
    assert sheet.names == ("1", "2")
    assert sheet.oddities == ()


def test_other_comments_are_left_out_and_told(tmp_path):
    sheet = read_text(table(tmp_path, "# made by 3dROIstats -q\n1 2\n3 4\n5 6\n", "rois.1D"), None)
    assert sheet.values.shape == (3, 2)
    assert sheet.time_axis == 0
    assert "1 line(s) of comment" in sheet.oddities[0]


def test_names_before_each_line_make_the_lines_parcels(tmp_path):
    sheet = read_text(table(tmp_path, "V1,1,2,4\nM1,4,5,9\n"), None)
    assert (sheet.names, sheet.time_axis) == (("V1", "M1"), 1)
    np.testing.assert_array_equal(sheet.values, [[1, 2, 4], [4, 5, 9]])


@pytest.mark.parametrize("first", ["roi,t0,t1,t2", "roi,0,1,2"])
def test_names_of_moments_are_left_out(tmp_path, first):
    sheet = read_text(table(tmp_path, f"{first}\nV1,1,2,4\nM1,4,5,9\n"), None)
    assert (sheet.names, sheet.values.shape) == (("V1", "M1"), (2, 3))
    assert "names moments" in sheet.oddities[0]


def test_a_table_without_names_says_nothing_of_its_axes(tmp_path):
    sheet = read_text(table(tmp_path, "1.5,2\n3,4\n5,6\n"), None)
    assert (sheet.names, sheet.time_axis) == ((), None)


def test_a_first_line_that_counts_is_names(tmp_path):
    # What pandas writes for an array.
    sheet = read_text(table(tmp_path, "0,1,2\n3.5,4,5\n6,7,8\n"), None)
    assert (sheet.names, sheet.values.shape) == (("0", "1", "2"), (2, 3))
    assert "counts the columns" in sheet.oddities[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (",V1,M1\n0,5,6\n1,7,8\n2,9,1\n", "column '' is no parcel"),
        ("row,V1\n0,5\n1,6\n2,7\n", "column 'row' is no parcel"),
        ("0,5.5,6\n1,7,8\n2,9,1\n3,2,2\n", "first column counts the rows"),
        ("bold,events\n1,2\n3,4\n", "column 'events' is no parcel"),
        ("trans_x,rot_x,csf\n1,2,3\n3,4,5\n", "table of confounds"),
        ("onset,duration,trial_type\n1,2,1\n3,4,1\n", "table of events"),
        ("ICA_00,ICA_01\n1,2\n3,4\n", "table of components"),
        ("V1,V1\n1,2\n3,4\n", "two parcels have the name 'V1'"),
        ("V1,M1\n1,2\n3\n", "line 3 has 1 values, the lines before have 2"),
        ("V1,M1\n1,2\n3,x4\n", "line 3 holds 'x4', which is no number"),
        ("V1,M1\n1,2\n3,1_000\n", "line 3 holds '1_000'"),
        ("V1;M1\n1,5;2,5\n3,5;4,5\n", "with a point before decimals"),
        ("V1,M1,S1\n1,2\n3,4\n", "3 names for 2 columns"),
        ("V1,M1\n", "names but no numbers"),
        ("\n\n", "no rows of numbers"),
        (b"V1,M1\n1,\xff2\n", "byte 8 is no UTF-8"),
        (b"V1,M1\n1,2\n\0\0\0\0", "is zero"),
    ],
)
def test_what_is_no_table_of_parcels_is_refused(tmp_path, content, words):
    with pytest.raises(UserError, match=words):
        read_text(table(tmp_path, content), None)


def test_named_columns_are_taken_whatever_stands_beside(tmp_path):
    path = table(tmp_path, "time,V1,M1\n0,5,6\n1,7,8\n2,9,1\n")
    sheet = read_text(path, ["M1", "V1"])
    assert sheet.names == ("M1", "V1")
    np.testing.assert_array_equal(sheet.values, [[6, 5], [8, 7], [1, 9]])
    with pytest.raises(UserError, match=r"unknown column 'V2'.* holds time, V1, M1"):
        read_text(path, ["V2"])


def test_columns_cannot_be_named_where_the_file_names_none(tmp_path):
    with pytest.raises(UserError, match="does not name its columns"):
        read_text(table(tmp_path, "1.5,2\n3,4\n"), ["V1"])


def test_a_last_line_without_an_end_is_told(tmp_path):
    sheet = read_text(table(tmp_path, "V1,M1\n1,2\n3,4"), None)
    assert sheet.oddities == ("its last line has no end: it may be cut short",)


def test_a_delimiter_at_the_end_of_each_line_makes_no_column(tmp_path):
    assert read_text(table(tmp_path, "V1\tM1\t\n1\t2\t\n3\t4\t\n"), None).values.shape == (2, 2)


def test_a_byte_order_mark_is_no_name(tmp_path):
    assert read_text(table(tmp_path, b"\xef\xbb\xbfV1,M1\r\n1,2\r\n3,4\r\n"), None).names == ("V1", "M1")


def test_a_text_above_the_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "TABLE_BYTES", 10)
    with pytest.raises(UserError, match="more than 10 bytes"):
        read_text(table(tmp_path, "V1,M1\n1,2\n3,4\n"), None)


def test_all_columns_of_confounds_are_read(tmp_path):
    columns = read_columns(table(tmp_path, "trans_x\trot_x\nn/a\t1\n2\t3\n", "c.tsv"))
    np.testing.assert_array_equal(columns["trans_x"], [np.nan, 2])
    with pytest.raises(UserError, match="does not name its columns"):
        read_columns(table(tmp_path, "1.5,2\n3,4\n"))
