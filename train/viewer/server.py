"""The server behind `npx-transformer serve`: static files of the page and a JSON API.

    GET  /, /NAME             the page: train/viewer/page/
    GET  /api/about           the run, if any
    GET  /api/curves          points from the runs' metrics.jsonl; 304 if unchanged
    POST /api/step            forward and backward, node by node
    POST /api/NAME            a question about a sentence, see sentences.py

A POST is answered with lines of JSON; the last one contains the result.

Starlette and uvicorn (the `page` extra) are imported only here. All computations run in one thread, one after the
other, because ablating a head changes the shared model. A computation whose client has disconnected
ends at its next step.
"""

import asyncio
import json
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from train.errors import UserError, one_line
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.tasks import TASKS
from train.viewer.blocks import structure
from train.viewer.curves import PANELS, series
from train.viewer.explanations import notation
from train.viewer.guard import Guard
from train.viewer.inspection import AXES, TEXT_AXES, is_parser
from train.viewer.sentences import MAX_BEAM_SIZE, QUESTIONS, Send, Sentences
from train.viewer.step import steps

PAGE = Path(__file__).with_name("page")
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FILES = {
    path.relative_to(PAGE).as_posix(): (path.read_bytes(), KINDS[path.suffix])
    for path in sorted(PAGE.rglob("*"))
    if path.suffix in KINDS
}


class Cancelled(Exception):
    """Raised in a job whose client disconnected, or when the server stops."""


class JobRunner:
    """Runs one job at a time, in one thread."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1)
        self.stopped = threading.Event()

    def cancel(self) -> None:
        """Cancel all jobs, each at its next step."""
        self.stopped.set()

    async def stream(self, job: Callable[[Send], Mapping[str, Any]]) -> AsyncIterator[bytes]:
        """Yield the messages and the result of a job as lines of JSON, or {"error"} for a user's error.

        Closing the iterator cancels the job; this happens when the client leaves or sends a new request.
        """
        cancelled = threading.Event()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(item: Mapping[str, Any] | None) -> None:
            line = None if item is None else json.dumps(item, allow_nan=False).encode() + b"\n"
            with suppress(RuntimeError):  # the server has shut down
                loop.call_soon_threadsafe(queue.put_nowait, line)

        def send(item: Mapping[str, Any]) -> None:
            if cancelled.is_set() or self.stopped.is_set():
                raise Cancelled
            put(item)

        def work() -> None:
            try:
                send({"started": True})  # raises Cancelled if the client has already disconnected
                put(job(send))
            except Cancelled:
                put({"cancelled": True})
            except (UserError, FloatingPointError) as error:
                put({"error": one_line(error)})
            except Exception:
                traceback.print_exc()
                reason = "internal error, not caused by your input"
                put({"error": f"{reason}; please report the traceback that the terminal shows"})
            put(None)

        self.executor.submit(work)
        try:
            while (line := await queue.get()) is not None:
                yield line
        finally:
            cancelled.set()


class Page:
    """The page: the metrics of runs by name, and the model of the first run, if it could be loaded.

    Args:
        model, tokenizer, config: a model, its tokenizer and the configuration of its run; all three, or none of them.
        examples: sentences that the page offers; the first one is analyzed automatically.
    """

    def __init__(
        self,
        runs: Mapping[str, Path],
        model: Any = None,
        tokenizer: Any = None,
        config: RunConfig | None = None,
        caption: str = "",
        examples: Sequence[str] = (),
    ) -> None:
        self.runs = {name: RunFolder(run) for name, run in runs.items()}
        self.model, self.tokenizer, self.config, self.caption = model, tokenizer, config, caption
        self.examples = list(examples)
        self.unavailable_reason = "" if model else "no run was given; start the server with `npx-transformer serve RUN`"
        self.job_runner = JobRunner()
        self.sentences = Sentences(model, tokenizer, config) if config else None
        self.blocks = structure(model, config.data.task != "tagging") if config else []

    def warm_up(self) -> None:
        """Analyze the first example in the thread that runs the model, so it is ready when the page opens."""
        if self.sentences is not None and self.examples:
            search = self.sentences.config.search
            settings: dict[str, Any] = {}
            if self.model.data_kind == "pairs":
                beam_size = min(search.beam_size, MAX_BEAM_SIZE)
                settings = {"beam_size": beam_size, "length_penalty": search.length_penalty}
            query = {"text": self.examples[0], **settings, "prefix": [], "ablated_heads": []}
            self.job_runner.executor.submit(self.sentences.translate, query, lambda item: None)

    def routes(self) -> list[Route]:
        files = [Route(f"/{name}", self.file, methods=["GET"]) for name in FILES if name != "index.html"]
        streams = [Route(f"/api/{name}", self.answer, methods=["POST"]) for name in ("step", *QUESTIONS)]
        gets = [Route(f"/api/{name}", getattr(self, name), methods=["GET"]) for name in ("about", "curves")]
        return [Route("/", self.file, methods=["GET"]), *files, *streams, *gets]

    async def file(self, request: Request) -> Response:
        content, kind = FILES[request.url.path[1:] or "index.html"]
        return Response(content, media_type=kind)

    async def about(self, request: Request) -> Response:
        answer: dict[str, Any] = {
            "runs": [*self.runs],
            "unavailable_reason": self.unavailable_reason,
            "source": self.caption,
        }
        if self.config is not None:
            c = self.model.config
            search = self.config.search
            tasks = {"text": "text", "labels": self.config.data.task}
            task = tasks.get(self.model.data_kind, "tree" if is_parser(self.tokenizer) else "translation")
            size = (c.src_vocab_size or 0) if self.model.data_kind == "labels" else c.vocab_size
            answer["model"] = {
                "task": task, "layers": c.n_layers, "heads": c.n_heads, "d_model": c.d_model, "d_ff": c.d_ff,
                "d_k": c.d_k or c.d_model // c.n_heads, "vocabulary": size, "norm": c.norm_placement,
                "parameters": self.model.n_parameters(), "blocks": self.blocks, "examples": self.examples,
                "beam_size": min(search.beam_size, MAX_BEAM_SIZE), "max_beam_size": MAX_BEAM_SIZE,
                "length_penalty": search.length_penalty,
                "notation": notation(task, self.tokenizer.src_vocab_size is None, size),
                "trained_on": training_files(self.config),
                "kinds": AXES if self.model.data_kind == "pairs" else TEXT_AXES,
            }  # fmt: skip
        return JSONResponse(answer)

    async def curves(self, request: Request) -> Response:
        tag = f'"{" ".join(etag_part(run.metrics_file) for run in self.runs.values())}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        panels = {
            name: {"title": panel.title, "axis": panel.unit, "log": panel.is_logarithmic}
            for name, panel in PANELS.items()
        }
        try:
            curves = await asyncio.to_thread(lambda: {name: series(run.metrics()) for name, run in self.runs.items()})
        except UserError as error:
            return JSONResponse({"error": one_line(error)})
        return JSONResponse({"runs": curves, "about": panels}, headers={"etag": tag})

    async def answer(self, request: Request) -> Response:
        """Answer a request in the thread that runs the model."""
        name = request.url.path.rsplit("/", 1)[1]
        query = await read_query(request)

        def job(send: Send) -> Mapping[str, Any]:
            if name == "step":
                return steps(query)
            if self.sentences is None:
                raise UserError(self.unavailable_reason)
            return QUESTIONS[name](self.sentences, query, send)

        return StreamingResponse(self.job_runner.stream(job), media_type="application/x-ndjson")


def training_files(config: RunConfig) -> list[str]:
    """Return the names of the training text's files; imported models have none."""
    data = config.data
    return [Path(file).name for name in TASKS[data.task].file_keys["train"] if (file := getattr(data, name))]


def etag_part(file: Path) -> str:
    """Return a part of an ETag that changes as the file grows."""
    try:
        stat = file.stat()
    except OSError:
        return "none"
    return f"{stat.st_mtime_ns}-{stat.st_size}"


async def read_query(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request, or an empty one for any other body."""
    try:
        query = json.loads(await request.body())
    except (ValueError, RecursionError):
        return {}
    return query if isinstance(query, dict) else {}


def application(page: Page, port: int, token: str = "") -> Guard:
    """Return the application behind a Guard, which rejects requests that are not permitted."""
    return Guard(Starlette(routes=page.routes()), port, token)
