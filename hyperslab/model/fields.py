"""The stream of a dense archive: frames on a grid become tokens, and tokens become frames again."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from hyperslab.errors import UserError
from hyperslab.model.block import Place
from hyperslab.model.config import ModelSettings, ObjectiveSettings, TokenSettings
from hyperslab.model.lattice import BLOCK, Lattice, cell_numbers, make_lattice
from hyperslab.model.part import WHOLE, Part
from hyperslab.model.positions import Axis, fourier_features, octaves, rotary_angles
from hyperslab.model.tokens import Patches, automatic_patch

CALENDAR_FEATURES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Field:
    """A dense archive as a model sees it: its frames, and how they are cut into tokens and put together again."""

    channels: int
    axes: tuple[Axis, ...]
    """Axes of space."""
    tokens: TokenSettings
    objective: ObjectiveSettings
    present: torch.Tensor | None = None
    """Grid points that ever hold data, bool, shape (*S); None where all do."""
    block: int = BLOCK
    """Tokens that lie close together and follow one another."""
    part: Part = WHOLE
    """Tokens that are held; frames are given as far as these reach, along the first axis of space."""
    where: str = "model."
    """What stands before its settings in a campaign, for messages."""

    @cached_property
    def patches(self) -> Patches:
        """How the past frames are cut.

        Raises
        ------
        UserError
            When the patch does not fit the axes.
        """
        sizes = tuple(len(axis.values) for axis in self.axes)
        patch = self.tokens.patch or automatic_patch(sizes)
        sides = [1] + [patch] * len(sizes) if isinstance(patch, int) else list(patch)
        if len(sides) == len(sizes):
            sides = [1, *sides]
        # Along a short axis a patch may reach over its end, though not along all of them.
        fits = any(side <= size for side, size in zip(sides[1:], sizes, strict=False))
        if len(sides) != len(sizes) + 1 or self.tokens.history % sides[0] or not fits:
            raise UserError(
                f"{self.where}patch: found {patch} for frames along {', '.join(axis.name for axis in self.axes)} and a "
                f"history of {self.tokens.history} frames; give sides within the grid: one number, "
                f"{len(sizes)} numbers, or "
                f"{len(sizes) + 1} that begin with a divisor of {self.where}history"
            )
        periodic = (False, *(axis.periodic for axis in self.axes))
        return Patches(sizes=(self.tokens.history, *sizes), patch=tuple(sides), periodic=periodic)

    @cached_property
    def lattice(self) -> Lattice:
        """Where all tokens lie, held or not: all patches but those in which no grid point ever holds data."""
        shape, present = self.patches.shape, None
        if self.present is not None:
            cells = _of_a_frame(self.patches).cut(self.present[None, None, None])[0].any(-1)
            if not bool(cells.any()):
                raise UserError(
                    f"{self.where}empty: no grid point ever holds data; look at the archive with `hyperslab inspect`"
                )
            present = cells.view(1, *shape[1:]).expand(shape)
        return make_lattice(shape, self.patches.periodic, present, self.block)

    @property
    def held(self) -> slice:
        """Tokens that are held, of all of the lattice."""
        return self.part.run(len(self.lattice))

    @cached_property
    def rows(self) -> slice:
        """Patches along the first axis of space as far as tokens that are held reach."""
        own = self.lattice.cells[self.held, 1]
        if self.part.count == 1:
            return slice(0, self.patches.shape[1])
        return slice(int(own.min()), int(own.max()) + 1) if len(own) else slice(0, 1)

    @property
    def band(self) -> slice:
        """The same in grid points."""
        side, size = self.patches.patch[1], self.patches.sizes[1]
        return slice(self.rows.start * side, min(size, self.rows.stop * side))

    @cached_property
    def held_patches(self) -> Patches:
        """How the past frames are cut, as far as they are given.

        Raises
        ------
        UserError
            When a patch reaches round an axis that closes on itself, to what another part holds.
        """
        patches, band = self.patches, self.band
        self._check_seams()
        if band == slice(0, patches.sizes[1]):
            return patches
        sizes = (patches.sizes[0], band.stop - band.start, *patches.sizes[2:])
        return replace(patches, sizes=sizes, periodic=(False, False, *patches.periodic[2:]))

    def _check_seams(self) -> None:
        patches = self.patches
        for number, axis in enumerate(self.axes, start=1):
            side, size = patches.patch[number], patches.sizes[number]
            # Across the other axes rows are given whole, but a roll-out knows only the forecasts of its own tokens.
            matters = number == 1 or self.objective.rollout > 1
            if self.part.count > 1 and patches.periodic[number] and size % side and matters:
                raise UserError(
                    f"{self.where}patch: found {side} along {axis.name}, which closes on itself after {size}; where "
                    "parallel.domain or parallel.tensor cut samples into parts it must divide that"
                )

    @property
    def frame_patches(self) -> Patches:
        """How a single frame is cut in space, as far as it is given."""
        return _of_a_frame(self.held_patches)

    @cached_property
    def cells(self) -> torch.Tensor:
        """Patch that each token that is held is, of all patches of what is given, in order; shape (N,)."""
        return self._cells_of(torch.arange(len(self.lattice))[self.held])

    @cached_property
    def _given(self) -> torch.Tensor:
        """Tokens that lie in what is given, held or not."""
        row = self.lattice.cells[:, 1]
        inside: torch.Tensor = (row >= self.rows.start) & (row < self.rows.stop)
        return inside.nonzero()[:, 0]

    @cached_property
    def _given_cells(self) -> torch.Tensor:
        """Patch that each of these is, as `cells`."""
        return self._cells_of(self._given)

    def _cells_of(self, tokens: torch.Tensor) -> torch.Tensor:
        cells = self.lattice.cells[tokens]
        cells[:, 1] -= self.rows.start
        return cell_numbers(cells, self.held_patches.shape)

    def cut(self, frames_BTCS: torch.Tensor) -> torch.Tensor:
        """What each token holds, shape (B, N, P)."""
        return self.held_patches.cut(frames_BTCS)[:, self.cells.to(frames_BTCS.device)]

    def join(self, values_BNP: torch.Tensor) -> torch.Tensor:
        """Frames from what each token holds, 0 where there is none; shape (B, T, C, *S)."""
        return join_some(self.held_patches, values_BNP, self.cells)

    def spread(self, marks_BN: torch.Tensor) -> torch.Tensor:
        """Marks of all tokens, held or not, as marks of what lies in them as far as it is given, (B, T, C, *S)."""
        marks_BNP = marks_BN[:, self._given, None].expand(-1, -1, self.channels * math.prod(self.patches.patch))
        return join_some(self.held_patches, marks_BNP, self._given_cells)

    def held_alone(self, marks_BN: torch.Tensor) -> torch.Tensor:
        """Marks of all tokens without those that are not held."""
        alone_BN = torch.zeros_like(marks_BN)
        alone_BN[:, self.held] = marks_BN[:, self.held]
        return alone_BN

    @cached_property
    def owned(self) -> torch.Tensor | None:
        """Grid points of the newest frame that are of tokens held, bool, shape (*S); None where all are."""
        if self.part.count == 1 and self.lattice.is_whole:
            return None
        points: torch.Tensor = self.spread(self.held_alone(torch.ones(1, len(self.lattice))))[0, -1, 0]
        return points > 0

    def filled(self, inputs_BTCS: torch.Tensor, hidden_BN: torch.Tensor | None) -> torch.Tensor:
        """Past frames without a gap: what is hidden by interpolation in time, what is missing by the mean, 0."""
        there = torch.isfinite(inputs_BTCS)
        filled_BTCS = torch.where(there, inputs_BTCS, 0.0)
        if hidden_BN is None:
            return filled_BTCS
        hidden_BTCS = self.spread(hidden_BN)
        return torch.where(hidden_BTCS, fill_in_time(inputs_BTCS, there & ~hidden_BTCS), filled_BTCS)


def _of_a_frame(patches: Patches) -> Patches:
    """How a single frame is cut in space."""
    return replace(patches, sizes=(1, *patches.sizes[1:]), patch=(1, *patches.patch[1:]))


def join_some(patches: Patches, values_BNP: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """Frames from the values of some of their patches, 0 in the others; shape (B, T, C, *S).

    Parameters
    ----------
    cells
        Numbers of these patches, shape (N,).
    """
    whole = values_BNP.new_zeros(len(values_BNP), math.prod(patches.shape), values_BNP.shape[-1])
    return patches.join(whole.index_copy(1, cells.to(values_BNP.device), values_BNP))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSample:
    """Samples of a dense archive, as the model takes them."""

    inputs_BTCS: torch.Tensor
    """Past frames, normalised; NaN where missing."""
    calendar_BF: torch.Tensor
    """Phase of the year and of the day at the time that is forecast, or of the last frame."""
    lead_B: torch.Tensor
    """How many times `objective.lead` ahead to forecast."""
    complete: bool
    """Whether no input is missing."""
    hidden_BN: torch.Tensor | None = None
    """Tokens that the model must not see, of all tokens of the samples, held or not; None where it may see all."""
    kept_LB: torch.Tensor | None = None
    """Shares for stochastic depth, by layer; None where every layer counts for every sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldView:
    """What there is to see of samples, before anything is learned."""

    filled_BTCS: torch.Tensor
    """Frames without a gap."""
    missing_BN: torch.Tensor | None
    """Share of what each token could hold that is missing and not hidden; None where nothing is."""
    place: Place


class FieldStream(nn.Module):
    """Embedder and head of a dense archive.

    What is asked for is predicted as a change: a forecast from the last frame, hidden values from linear interpolation
    in time between visible ones (the mean where there are none). Heads begin at zero, so that an untrained model gives
    persistence, and interpolation.
    """

    position_features: torch.Tensor
    place_of: torch.Tensor
    time_of: torch.Tensor
    last: torch.Tensor
    most: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, field: Field, settings: ModelSettings) -> None:
        super().__init__()
        self.field = field
        patches, width = field.patches, settings.width
        places = field.channels * math.prod(patches.patch[1:])
        values = places * patches.patch[0]
        self.lattice = field.lattice
        time, shape = self.lattice.cells[field.held, 0], patches.shape[1:]
        self.register_buffer("time_of", time.clone(), persistent=False)
        self.register_buffer("place_of", field.cells % math.prod(field.held_patches.shape[1:]), persistent=False)
        self.register_buffer("last", (time == patches.shape[0] - 1).nonzero()[:, 0], persistent=False)
        # What a token could hold: the points of its patch at which there ever is data.
        present = torch.ones(()) if field.present is None else field.present.float()
        present = present.expand(1, patches.sizes[0], field.channels, *patches.sizes[1:])
        most = field.cut(present[:, :, :, field.band]).sum(-1)
        self.register_buffer("most", most[0], persistent=False)
        self._register_positions(settings)
        self.embed = nn.Linear(values, width)
        self.embed_position = nn.Linear(self.position_features.shape[1], width)
        self.embed_calendar = nn.Linear(CALENDAR_FEATURES, width)
        self.embed_age = nn.Parameter(torch.empty(patches.shape[0], width))
        self.embed_missing = nn.Parameter(torch.empty(width))
        if field.objective.leads > 1:
            self.embed_lead = nn.Linear(octaves(torch.zeros(1)).shape[-1], width)
        if any(axis.nominal for axis in field.axes):
            self.embed_place = nn.Parameter(torch.empty(math.prod(shape), width))
        if field.objective.forecasts:
            self.head_forecast = nn.Linear(width, places)
        if field.objective.masks:
            self.embed_hidden = nn.Parameter(torch.empty(width))
            self.head_reconstruction = nn.Linear(width, values)

    def _register_positions(self, settings: ModelSettings) -> None:
        axes, patches = self.field.axes, self.field.patches
        centres = [
            patches.centres(number, torch.tensor(axis.values, dtype=torch.float64))
            for number, axis in enumerate(axes, start=1)
        ]
        features = fourier_features(axes, centres, whole_sphere=any(axis.periodic for axis in axes))
        self.register_buffer("position_features", features[self.places], persistent=False)
        coordinates = self.lattice.cells.double()
        for number, (axis, own) in enumerate(zip(axes, centres, strict=True), start=1):
            step = float((own[-1] - own[0]).abs()) / max(1, len(own) - 1)
            if axis.periodic:
                step = 360 / len(own) if axis.name == "longitude" else step
            coordinates[:, number] = ((own - own[0]) / (step or 1.0))[self.lattice.cells[:, number]]
        known = [0, *(number for number, axis in enumerate(axes, start=1) if not axis.nominal)]
        angles = rotary_angles(
            coordinates[:, known],
            [float(patches.shape[number]) for number in known],
            [patches.periodic[number] for number in known],
            settings.width // settings.heads,
        )
        angles = angles[self.field.held]
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)

    @property
    def places(self) -> slice:
        """Places of the whole lattice, the last axis counting fastest, as far as tokens that are held reach."""
        in_row = math.prod(self.field.patches.shape[2:])
        return slice(self.field.rows.start * in_row, self.field.rows.stop * in_row)

    def lattice_of(self, sample: FieldSample) -> Lattice:
        """Where all tokens of samples lie: always in the same places."""
        del sample
        return self.lattice

    def see(self, sample: FieldSample) -> FieldView:
        """What there is to see of samples."""
        missing_BN = valid = None
        if not sample.complete:
            missing_BN = self._missing(sample.inputs_BTCS)
            if sample.hidden_BN is not None:  # how much of a hidden token there was to see is hidden as well
                missing_BN = missing_BN.masked_fill(sample.hidden_BN[:, self.field.held], 0.0)
            valid = missing_BN < 1
        return FieldView(
            filled_BTCS=self.field.filled(sample.inputs_BTCS, sample.hidden_BN),
            missing_BN=missing_BN,
            place=Place(cosine=self.cosine, sine=self.sine, count=len(self.lattice), valid=valid),
        )

    def tokens(self, sample: FieldSample, view: FieldView) -> torch.Tensor:
        """Tokens, shape (B, N, D)."""
        # Parameters may be gathered in half precision, while the frames themselves are never rounded.
        half = self.embed.weight.dtype
        tokens_BND: torch.Tensor = self.embed(self.field.cut(view.filled_BTCS).to(half))
        tokens_BND = tokens_BND + self.embed_position(self.position_features.to(half))[self.place_of]
        tokens_BND = tokens_BND + self.embed_age[self.time_of]
        tokens_BND = tokens_BND + self.embed_calendar(sample.calendar_BF.to(half))[:, None]
        if self.field.objective.leads > 1:
            # Of up to 32 leads, any two that follow one another lie a quarter of a turn apart in some octave.
            lead = octaves(sample.lead_B[:, None].to(torch.float32) / self.field.objective.leads).to(half)
            tokens_BND = tokens_BND + self.embed_lead(lead)[:, None]
        if hasattr(self, "embed_place"):
            tokens_BND = tokens_BND + self.embed_place[self.places][self.place_of]
        if view.missing_BN is None:
            # Ranks sum the gradients of the same parameters, though only some of them may miss anything.
            tokens_BND = tokens_BND + 0 * self.embed_missing
        else:
            tokens_BND = tokens_BND + view.missing_BN[..., None].to(half) * self.embed_missing
        if sample.hidden_BN is not None:
            hidden_BN = sample.hidden_BN[:, self.field.held]
            tokens_BND = torch.where(hidden_BN[..., None], tokens_BND + self.embed_hidden, tokens_BND)
        return tokens_BND

    def _missing(self, inputs_BTCS: torch.Tensor) -> torch.Tensor:
        """Share of what each token could hold that is missing, shape (B, N)."""
        there = self.field.cut(torch.isfinite(inputs_BTCS).float()).sum(-1)
        return 1 - there / self.most

    def predict(self, tokens_BND: torch.Tensor, view: FieldView) -> dict[str, torch.Tensor]:
        """What the objective asks for: `forecast` (B, C, *S) and `reconstruction` (B, T, C, *S), normalised."""
        predictions, filled_BTCS = {}, view.filled_BTCS
        if self.field.objective.forecasts:
            changes = self.head_forecast(tokens_BND[:, self.last]).to(filled_BTCS.dtype)
            change = join_some(self.field.frame_patches, changes, self.place_of[self.last])
            predictions["forecast"] = filled_BTCS[:, -1] + change[:, 0]
        if self.field.objective.masks:
            changes = self.head_reconstruction(tokens_BND).to(filled_BTCS.dtype)
            predictions["reconstruction"] = filled_BTCS + self.field.join(changes)
        return predictions


def fill_in_time(frames_BTCS: torch.Tensor, visible_BTCS: torch.Tensor) -> torch.Tensor:
    """Frames whose gaps are filled by linear interpolation in time between what is visible of each grid point.

    Before the first and after the last visible frame its value goes on; a point that is never visible is 0.
    """
    count = frames_BTCS.shape[1]
    time = torch.arange(count, device=frames_BTCS.device).view(1, count, *[1] * (frames_BTCS.ndim - 2))
    values = torch.where(visible_BTCS, frames_BTCS, 0.0)
    before = torch.where(visible_BTCS, time, -1).cummax(1).values
    after = torch.where(visible_BTCS, time, count).flip(1).cummin(1).values.flip(1)
    any_before, any_after = before >= 0, after < count
    low = torch.where(any_before, before, after).clamp(0, count - 1)
    high = torch.where(any_after, after, before).clamp(0, count - 1)
    share = (time - low).to(values.dtype) / (high - low).clamp_min(1)
    low_value, high_value = values.gather(1, low), values.gather(1, high)
    return low_value + share * (high_value - low_value)
