"""The application: its routes, and how errors are told."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from hyla import __version__
from hyla.explorer import codes, fuzzy, puzzles, swaps
from hyla.explorer.gallery import Exhibit, Gallery
from hyla.explorer.memo import Memo
from hyla.explorer.runs import RunFolder
from hyla.explorer.web import schemas
from hyla.explorer.web.admission import Admission
from hyla.explorer.web.refusals import RefusedError
from hyla.explorer.web.security import Access, Guard

_PAGE = Path(str(resources.files("hyla.explorer"))) / "page"
_PLOTLY = Path(str(resources.files("plotly"))) / "package_data" / "plotly.min.js"
_KEPT_ATLASES = 64

_REASONS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem, "description": description}
    for status, description in {
        400: "The body is not JSON.",
        401: "The token is missing.",
        403: "The request is from another site.",
        404: "There is no such model, puzzle or run.",
        409: "It is there, but this cannot be done with it.",
        413: "The body is too large.",
        421: "The Host header is not this server's.",
        422: "The request is malformed.",
        503: "Too many requests came at once: try again.",
    }.items()
}

_Model = Annotated[schemas.ModelId, Query(description="Id of a model.")]
_Puzzle = Annotated[schemas.PuzzleId, Query(alias="id", description="Id of a puzzle.")]
_Layer = Annotated[int, Query(ge=0, le=1000, description="Number of a layer, from 0.")]
_Token = Annotated[int | None, Query(ge=0, le=100_000, description="Position of a token, from 0.")]


def build_app(gallery: Gallery, folder: RunFolder, access: Access) -> ASGIApp:
    """Return the application for these models and runs."""
    app = FastAPI(
        title="hyla explorer",
        version=__version__,
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(_api(gallery, folder))
    _serve_page(app)
    app.add_exception_handler(RefusedError, _refusal)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    # The guard is around all of it: answers to bugs get its headers, too.
    return Guard(Admission(app), access)


def _api(gallery: Gallery, folder: RunFolder) -> APIRouter:
    api = APIRouter(prefix="/api", responses=_REASONS)
    kept: Memo[codes.Atlas] = Memo(_KEPT_ATLASES)

    def atlas_of(subject: Exhibit) -> codes.Atlas:
        return kept.get(subject.id, lambda: codes.Atlas(subject))

    @api.get("/about")
    def about() -> schemas.About:
        """What there is to look at."""
        models = [subject.description for subject in gallery.subjects.values()]
        return schemas.About(
            version=__version__,
            models=models,
            sraven=next((model.sraven for model in models if model.sraven), None),
            fuzzy=next((model.fuzzy for model in models if model.fuzzy), None),
        )

    @api.get("/sraven/instance")
    def instance(
        model: _Model,
        seed: Annotated[schemas.Seed, Query()] = 0,
        split: schemas.Split = "seen",
        permuted: bool = True,
        rules: Annotated[str | None, Query(max_length=1000)] = None,
    ) -> schemas.Instance:
        """Make a puzzle: of a side of the model's split, or with the rules that are named."""
        subject = gallery[model]
        puzzle = puzzles.new_puzzle(subject, seed=seed, split=split, permuted=permuted, rules=rules)
        return puzzles.shown_puzzle(subject, puzzle)

    @api.get("/sraven/puzzle")
    def puzzle(model: _Model, puzzle_id: _Puzzle) -> schemas.Instance:
        """Find the puzzle of an id."""
        subject = gallery[model]
        return puzzles.shown_puzzle(subject, puzzles.puzzle_for(gallery, subject, puzzle_id))

    @api.get("/sraven/answers")
    def answers(model: _Model, puzzle_id: _Puzzle) -> schemas.Answers:
        """The answers of the model and of the exact solver."""
        subject = gallery[model]
        return puzzles.answers(subject, puzzles.puzzle_for(gallery, subject, puzzle_id))

    @api.get("/sraven/reveal")
    def reveal(puzzle_id: _Puzzle) -> schemas.Reveal:
        """The right answer, and the rule of each feature."""
        return puzzles.reveal(puzzles.find_puzzle(gallery, puzzle_id))

    @api.get("/sraven/code")
    def code(
        model: _Model, puzzle_id: _Puzzle, query: _Token = None, key: _Token = None
    ) -> schemas.Codes:
        """The latent code of a query-key pair in each layer, and the rules it is like."""
        subject = gallery[model]
        found = puzzles.puzzle_for(gallery, subject, puzzle_id)
        return atlas_of(subject).codes(found, codes.pairs_of(subject, query, key))

    @api.get("/sraven/map")
    def code_map(
        model: _Model, layer: _Layer, query: _Token = None, key: _Token = None
    ) -> schemas.Map:
        """A map of a layer's codes (t-SNE); made once, which takes a moment."""
        subject = gallery[model]
        return atlas_of(subject).map(layer, codes.pairs_of(subject, query, key))

    @api.get("/sraven/place")
    def place(
        model: _Model, layer: _Layer, puzzle_id: _Puzzle, query: _Token = None, key: _Token = None
    ) -> schemas.Place:
        """Where a puzzle's code lies on the map."""
        subject = gallery[model]
        found = puzzles.puzzle_for(gallery, subject, puzzle_id)
        return atlas_of(subject).place(layer, found, codes.pairs_of(subject, query, key))

    @api.post("/sraven/swap")
    def swap(request: schemas.SwapRequest) -> schemas.Swap:
        """Give a puzzle another rule's code, and see what the model then answers."""
        return swaps.swap(gallery, atlas_of(gallery[request.model]), request)

    @api.post("/fuzzy/predict")
    def predict(request: schemas.FunctionRequest) -> schemas.FunctionPrediction:
        """A function at the query point, and what models infer it to be from examples."""
        return fuzzy.predict(gallery, request)

    @api.post("/fuzzy/slice")
    def slice_(request: schemas.SliceRequest) -> schemas.FunctionSlice:
        """The same, with the query moved along one variable."""
        return fuzzy.slice_along(gallery, request)

    @api.get("/runs")
    def runs() -> schemas.Runs:
        """The runs of the folder."""
        return folder.runs()

    @api.get("/curves")
    def curves(run: Annotated[str, Query(min_length=1, max_length=400)]) -> schemas.Curves:
        """The metrics of a run along its training."""
        return folder.curves(run)

    return api


# --- the page ------------------------------------------------------------------------------------


def _serve_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def index() -> FileResponse:
        return FileResponse(_PAGE / "index.html")

    @app.get("/favicon.ico", include_in_schema=False)  # where a page names no icon, as at first
    def icon() -> FileResponse:
        return FileResponse(_PAGE / "icon.svg")

    @app.get("/static/plotly.min.js", include_in_schema=False)
    def plotly_library() -> FileResponse:
        # It is large and changes with its version only.
        return FileResponse(_PLOTLY, headers={"Cache-Control": "private, max-age=3600"})

    app.mount("/static", StaticFiles(directory=_PAGE), name="static")


# --- errors --------------------------------------------------------------------------------------


def _refusal(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    return _problem(error.status, str(error))


def _malformed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _problem(422, "; ".join(map(_complaint, error.errors())))


def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    reason = {
        400: "the body is not JSON",
        404: "there is nothing here: see /openapi.json",
        405: "this cannot be done here: see /openapi.json",
    }.get(error.status_code, error.detail)
    return _problem(error.status_code, reason, error.headers)


def _unexpected(_: Request, error: Exception) -> JSONResponse:
    return _problem(500, f"a bug of the explorer ({type(error).__name__}): see its terminal")


def _complaint(complaint: dict[str, Any]) -> str:
    """Say where something is wrong and what: `query.0: Input should be less than 1`."""
    place: Sequence[Any] = complaint["loc"][1:] or complaint["loc"]
    return f"{'.'.join(map(str, place))}: {complaint['msg']}"


def _problem(status: int, reason: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": reason}, status_code=status, headers=headers)
