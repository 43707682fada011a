"""How many files a study of many scans becomes, beside one file a scan and one file a volume.

python benchmarks/inodes.py [--runs 1000] [--size 200MB]
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from hyperslab.data.sources.synthetic.archive import Order
from hyperslab.data.sources.synthetic.simulate import simulate
from hyperslab.data.store import open_store
from hyperslab.workflows.archives import parse_size


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--size", default="200MB")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        raw = folder / "bids"
        size = parse_size(chosen.size, "--size")
        simulate("fmri", Order(out=raw, size_bytes=size, seed=0, form="nifti", workers=2, runs=chosen.runs))
        runs = sorted(raw.rglob("*_bold.nii.gz"))
        campaign = folder / "campaign.yaml"
        campaign.write_text(f"data: {{source: fmri, files: ['{raw}/sub-*/func/*_bold.nii.gz']}}\n")
        command = [sys.executable, "-m", "hyperslab.workflows.cli", "stage", str(campaign), "--dir", str(folder / "c")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        store = open_store(folder / "c" / "store")
        files = [path for path in store.path.rglob("*") if path.is_file()]
        own = sum(path.stat().st_size for path in files)
        print(f"{'':34}{'files':>9}{'MB':>9}")
        print(f"{'raw scans and their sidecars':34}{len(_files(raw)):9,}{_bytes(raw) / 1e6:9.1f}")
        print(f"{'one file a volume':34}{len(store.time):9,}{'':>9}")
        print(f"{f'store of {len(runs)} runs':34}{len(files):9,}{own / 1e6:9.1f}")
        shards = [path for path in files if "values/c/" in path.as_posix()]
        print(f"{'    of these, shards':34}{len(shards):9,}{sum(path.stat().st_size for path in shards) / 1e6:9.1f}")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


if __name__ == "__main__":
    main()
