"""Truth segments of edep-sim and larnd-sim: energy deposits along the paths of particles."""

from collections.abc import Iterator
from contextlib import contextmanager

from hyperslab.data.sources.lartpc.hdf5 import dataset, holds, open_hdf5
from hyperslab.data.sources.lartpc.layout import Layout, Quantity, make_layout
from hyperslab.data.sources.lartpc.points import Column
from hyperslab.data.sources.lartpc.table import CompoundTable, DatasetTable, Table
from hyperslab.data.sources.lartpc.tables import TableFormat

# Units of larnd-sim (consts/ and cli/dumpTree.py of DUNE/larnd-sim): cm, us, MeV.
QUANTITIES = {
    "dE": Quantity(units="MeV", long_name="energy deposited", is_charge=True),
    "dEdx": Quantity(units="MeV cm-1", long_name="energy deposited per length"),
    "dx": Quantity(units="cm", long_name="length of the segment"),
    "n_electrons": Quantity(units="1", long_name="ionisation electrons"),
    "n_photons": Quantity(units="1", long_name="scintillation photons"),
    "tran_diff": Quantity(units="cm", long_name="transverse diffusion"),
    "long_diff": Quantity(units="cm", long_name="longitudinal diffusion"),
    **{
        f"{name}{end}": Quantity(units="us", long_name=f"{what} of the segment{words}")
        for name, what in (("t", "arrival time"), ("t0", "time"))
        for end, words in (("", ""), ("_start", "'s start"), ("_end", "'s end"))
    },
    **{
        f"{axis}_{end}": Quantity(units="cm", long_name=f"{axis} of the segment's {end}")
        for axis in "xyz"
        for end in ("start", "end")
    },
}


class Segments(TableFormat):
    """`segments` (once `tracks`): a table whose fields, and their order, differ between versions."""

    name = "segments"
    kind = "larnd-sim or edep-sim segments"
    # What the event of a segment was called over the years (DUNE/larnd-sim issue 152).
    event_columns = ("event_id", "eventID", "spillID", "spill_id")

    @contextmanager
    def open(self, path: str) -> Iterator[Table]:
        """The table of segments."""
        with open_hdf5(path) as file:
            name = "segments" if holds(file, "segments") else "tracks"
            yield CompoundTable(dataset(file, name), path)

    def layout(self, table: Table, path: str) -> Layout:
        """The middle of a segment is its position."""
        axes = {axis: Column(names=(axis,)) for axis in "xyz"}
        return make_layout(table, path, axes, QUANTITIES, left_out=(self.event_column(table, path),))


class SegmentColumns(TableFormat):
    """The first layout of larnd-sim: a dataset for each column, ends of segments, no middle."""

    name = "segment-columns"
    kind = "larnd-sim segments, a dataset for each column"
    event_columns = ("SpillID",)
    required = ("SpillID", *(f"{end}{axis}Pos" for end in ("Start", "End") for axis in "XYZ"))

    @contextmanager
    def open(self, path: str) -> Iterator[Table]:
        """The datasets at the top of the file as one table."""
        with open_hdf5(path) as file:
            yield DatasetTable({name: dataset(file, name) for name in file}, path)

    def layout(self, table: Table, path: str) -> Layout:
        """The middle between a segment's ends is its position."""
        axes = {axis: Column(names=(f"Start{axis.upper()}Pos", f"End{axis.upper()}Pos")) for axis in "xyz"}
        # The energy is about 0.002 a cm, what a muon loses in argon in GeV.
        quantities = {"EnergyDep": Quantity(units="GeV", long_name="energy deposited", is_charge=True)}
        oddities = (
            "the file states no units: positions are taken as cm and EnergyDep as GeV, as fits a muon's loss in argon",
            "positions are the middles between the segments' ends",
        )
        return make_layout(table, path, axes, quantities, left_out=("SpillID",), oddities=oddities)
