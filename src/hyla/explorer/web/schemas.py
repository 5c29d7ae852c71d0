"""What goes over the wire: the shape of every request and of every answer."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

MAX_SEED = 2**31 - 1


def _whole(number: object) -> object:
    """Take 2.0 for 2, as JSON does; leave everything else to be checked."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


WHOLE = BeforeValidator(_whole)
ModelId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
PuzzleId = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{8}\.[0-9a-z]{1,32}\.[po]\.[0-9]{1,10}$")
]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED), WHOLE]
Sign = Annotated[Literal[-1, 1], WHOLE]
Unit = Annotated[float, Field(ge=0, le=1)]
Split = Literal["seen", "held-out"]
Verdict = Literal["follows", "stays", "copies", "undecided", "other"]
Familiarity = Literal["seen", "held-out", "unknown term", "other"]
Panel = list[int]


class Answer(BaseModel):
    """Answers have the fields that are written here, and no others."""

    model_config = ConfigDict(extra="forbid")


class Request(BaseModel):
    """Requests say nothing that is not understood, and numbers are numbers, not text."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Problem(Answer):
    """Why there is no answer."""

    error: str


# --- what there is -----------------------------------------------------------------------------


class PuzzleShape(Answer):
    """What puzzles look like."""

    shape: str
    features: int
    values: int
    rules: list[str]
    pairs: list[tuple[int, int]]
    """The query-key pairs of the study."""


class FunctionShape(Answer):
    """What fuzzy logic functions look like."""

    shape: str
    variables: int
    terms: int
    context: int


class Model(Answer):
    """A model that can be explored."""

    id: str
    name: str
    """What its attention is called."""
    label: str
    task: Literal["sraven", "fuzzy"]
    attention: str
    layers: int
    heads: int
    seed: int
    note: str
    scores: dict[str, float]
    metric: str
    sraven: PuzzleShape | None
    fuzzy: FunctionShape | None


class About(Answer):
    """What there is to look at."""

    version: str
    models: list[Model]
    sraven: PuzzleShape | None
    fuzzy: FunctionShape | None


# --- puzzles -----------------------------------------------------------------------------------


class Instance(Answer):
    """A puzzle as it is shown."""

    id: str
    seed: int
    split: Split
    permuted: bool
    panels: list[Panel]
    grid: int
    features: int
    values: int


class ModelAnswer(Answer):
    """What the model says."""

    values: Panel
    probabilities: list[list[float]]
    correct: bool


class Candidate(Answer):
    """A panel that some reading prescribes."""

    values: Panel
    probability: float


class SolverAnswer(ModelAnswer):
    """What can be known."""

    posterior: float
    num_answers: int
    answers: list[Candidate]
    ambiguous_by_definition: bool
    ambiguous_by_authors: bool


class Answers(Answer):
    """Both."""

    split: Split
    model: ModelAnswer
    solver: SolverAnswer


class RevealedFeature(Answer):
    """One feature followed through the grid."""

    feature: int
    rule: str
    sentence: str
    rows: list[Panel]
    positions: list[int]


class Reveal(Answer):
    """The answer and where it comes from."""

    target: Panel
    features: list[RevealedFeature]


# --- codes -------------------------------------------------------------------------------------


class Similarity(Answer):
    """How close a code is to a rule's mean code."""

    rule: str
    cosine: float


class LayerCode(Answer):
    """What one layer shows."""

    layer: int
    codes: list[list[float]]
    nearest: list[Similarity]


class Codes(Answer):
    """The codes of query-key pairs in every layer."""

    pairs: list[tuple[int, int]]
    rule: str
    layers: list[LayerCode]


class Place(Answer):
    """A place on the map."""

    x: float
    y: float


class Point(Place):
    """An instance there."""

    rule: str
    target: int
    split: Split


class Map(Answer):
    """A layer's codes in the plane, and how the rules' means lie to each other."""

    points: list[Point]
    rules: list[str]
    cosine: list[list[float]]
    pairs: list[tuple[int, int]]


# --- swaps -------------------------------------------------------------------------------------


class DonorRule(Request):
    """Some instance, or the mean, of a rule."""

    rule: Annotated[str, StringConstraints(max_length=100)]
    same_operands: bool = True
    """Whether to look for an instance that applies the rule to what the puzzle's is applied to."""


class DonorPuzzle(Request):
    """This puzzle."""

    id: PuzzleId


class SwapRequest(Request):
    """Whose code to give to which layers, at which of the study's pairs."""

    model: ModelId
    id: PuzzleId
    layers: Annotated[list[Annotated[int, Field(ge=0), WHOLE]], Field(min_length=1, max_length=64)]
    donor: DonorRule | DonorPuzzle
    code: Literal["instance", "rule mean", "zero"]
    pairs: Literal["row", "all keys"] = "row"


class Prediction(Answer):
    """The whole panel, and the probabilities of its last place."""

    values: Panel
    probabilities: list[float]


class DonorShown(Answer):
    """The instance whose code was given."""

    id: str
    panels: list[Panel]
    target: Panel
    answer: int
    correct: bool
    same_operands: bool
    note: str | None
    """Why it is not the donor that was asked for."""


class Share(Answer):
    """A rate with its 95 % interval."""

    value: float
    low: float
    high: float


class Counted(Answer):
    """What many swaps like this one did, in all layers together."""

    swaps: int
    seeds: list[int]
    """Of the models whose swaps were counted."""
    follows: Share | None
    stays: Share
    copies: Share | None
    control: Share | None
    """How many follow if the same code is put on the wrong heads."""


class Swap(Answer):
    """What a swap did; no rule is a donor's if there is no code."""

    before: Prediction
    after: Prediction
    own_rule: str
    donor_rule: str | None
    own_prescribes: int
    donor_prescribes: int | None
    donor: DonorShown | None
    verdict: Verdict
    sentence: str
    counted: Counted | None


# --- fuzzy logic -------------------------------------------------------------------------------


class FunctionRequest(Request):
    """A function, where it is shown, and where it is asked for."""

    models: Annotated[list[ModelId], Field(min_length=1, max_length=16)]
    terms: Annotated[
        list[Annotated[list[Sign], Field(min_length=1, max_length=16)]],
        Field(min_length=1, max_length=4),
    ]
    seed: Seed
    query: Annotated[list[Unit], Field(min_length=1, max_length=16)]


class SliceRequest(FunctionRequest):
    """Along which variable to move."""

    variable: Annotated[int, Field(ge=0, le=15), WHOLE]


class Example(Answer):
    """A point and the function's value there."""

    x: list[float]
    y: float


class FunctionPrediction(Answer):
    """What the function is at the query, and what models take it for."""

    name: str
    context: list[Example]
    target: float
    predictions: dict[str, float]
    seen: dict[str, Familiarity]


class FunctionSlice(Answer):
    """The same along a line."""

    grid: list[float]
    target: list[float]
    predictions: dict[str, list[float]]


# --- runs --------------------------------------------------------------------------------------


class Run(Answer):
    """A run of the folder."""

    id: str
    name: str
    task: str
    attention: str
    members: int
    finished: bool
    device: str | None
    step: int
    steps: int
    metrics: dict[str, float]


class SkippedRun(Answer):
    """A folder that looks like a run, and cannot be read."""

    id: str
    reason: str


class Runs(Answer):
    """What the folder holds."""

    runs: list[Run]
    skipped: list[SkippedRun]


class Series(Answer):
    """A metric along training; null where it was no number."""

    steps: list[int]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Curves(Answer):
    """All metrics of a run."""

    run: str
    series: dict[str, Series]
    config: dict[str, object]
