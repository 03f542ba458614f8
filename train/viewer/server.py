"""The server behind `npx-transformer serve`: static files of the page and a JSON API.

    GET  /, /NAME             the page: train/viewer/page/
    GET  /api/about           the run, if any
    GET  /api/curves          points from the runs' metrics.jsonl; 304 if unchanged
    POST /api/step            forward and backward, node by node
    POST /api/translate       NDJSON lines while the search runs; the last line has the result, with the attention
    weights as base64-encoded bytes POST /api/head            one head of a recent translation in full precision

Starlette and uvicorn (the extra `page`) are imported only here. All computations run in one thread, because ablating
a head changes the shared model; a new translation cancels the previous one.
"""

import asyncio
import base64
import json
import secrets
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from models.search import check_search
from models.search.beam import SearchStep
from models.search.tree import CUT, FINISHED, Tree
from train.errors import UserError, one_line
from train.run.folder import RunFolder
from train.viewer.curves import PANELS, series
from train.viewer.guard import Guard
from train.viewer.inspection import (
    AXES,
    Head,
    Inspection,
    ablate_heads,
    all_heads,
    constrained_model,
    inspect,
    labels,
    max_source_tokens,
    output_text,
    source_ids,
    summary,
    translate,
)
from train.viewer.step import steps, to_json

PAGE = Path(__file__).with_name("page")
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FILES = {path.name: (path.read_bytes(), KINDS[path.suffix]) for path in sorted(PAGE.iterdir()) if path.suffix in KINDS}
MAX_BEAM, ALTERNATIVES, RECENT = 8, 5, 8  # beam size, alternatives per token, translations kept for opening heads
Send = Callable[[Mapping[str, Any]], None]


class Cancelled(Exception):
    """Raised in a job that was superseded or whose client disconnected."""


class Inference:
    """Runs one job at a time, in one thread."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.cancelled = threading.Event()  # of the latest cancellable job

    def cancel(self) -> None:
        """Cancel the running job at its next step, unless it was started with `waits`."""
        self.cancelled.set()

    async def lines(self, job: Callable[[Send], Mapping[str, Any]], waits: bool = False) -> AsyncIterator[bytes]:
        """Yield what a job sends and finally returns as lines of JSON; {"error"} for a user's error.

        A new job cancels the running one unless the new job `waits` its turn; no other job cancels one that waits.
        """
        cancelled = threading.Event()
        if not waits:
            self.cancel()
            self.cancelled = cancelled
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(item: Mapping[str, Any] | None) -> None:
            line = None if item is None else json.dumps(item, allow_nan=False).encode() + b"\n"
            with suppress(RuntimeError):  # the server has shut down
                loop.call_soon_threadsafe(queue.put_nowait, line)

        def send(item: Mapping[str, Any]) -> None:
            if cancelled.is_set():
                raise Cancelled
            put(item)

        def work() -> None:
            try:
                send({"started": True})  # raises if the client is already gone
                put(job(send))
            except Cancelled:
                put({"cancelled": True})
            except (UserError, FloatingPointError) as error:
                put({"error": one_line(error)})
            except Exception:
                traceback.print_exc()
                put(
                    {
                        "error": "internal error, not caused by your input; please report the traceback that "
                        "the terminal shows"
                    }
                )
            put(None)

        self.thread.submit(work)
        try:
            while (line := await queue.get()) is not None:
                yield line
        finally:
            cancelled.set()


class Page:
    """The page: a model that translates or parses, if any, and the metrics of runs by name."""

    def __init__(
        self, runs: Mapping[str, Path], model: Any = None, tokenizer: Any = None, config: Any = None, source: str = ""
    ) -> None:
        self.runs = {name: RunFolder(run) for name, run in runs.items()}
        self.model, self.tokenizer, self.config, self.source = model, tokenizer, config, source
        self.why = "" if model else "no run was given; start with npx-transformer serve RUN"
        self.inference = Inference()
        self.recent: dict[str, Inspection] = {}  # the latest translations by id

    def routes(self) -> list[Route]:
        files = [Route(f"/{name}", self.file, methods=["GET"]) for name in FILES if name != "index.html"]
        posts = [Route(f"/api/{name}", getattr(self, name), methods=["POST"]) for name in ("step", "translate", "head")]
        gets = [Route(f"/api/{name}", getattr(self, name), methods=["GET"]) for name in ("about", "curves")]
        return [Route("/", self.file, methods=["GET"]), *files, *posts, *gets]

    async def file(self, request: Request) -> Response:
        content, kind = FILES[request.url.path[1:] or "index.html"]
        return Response(content, media_type=kind)

    async def about(self, request: Request) -> Response:
        answer: dict[str, Any] = {"runs": [*self.runs], "why": self.why, "source": self.source}
        if self.model is not None:
            c, search = self.model.config, self.config.search
            answer["model"] = {
                "layers": c.n_layers, "heads": c.n_heads, "d_model": c.d_model, "parameters": self.model.n_parameters(),
                "beam": min(search.beam, MAX_BEAM), "most_beam": MAX_BEAM, "alpha": search.alpha, "kinds": AXES,
            }  # fmt: skip
        return JSONResponse(answer)

    async def curves(self, request: Request) -> Response:
        tag = f'"{" ".join(stamp(run.metrics_file) for run in self.runs.values())}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        about = {name: {"title": title, "log": logarithmic} for name, (title, _, logarithmic) in PANELS.items()}
        try:
            curves = await asyncio.to_thread(lambda: {name: series(run.metrics()) for name, run in self.runs.items()})
        except UserError as error:
            return JSONResponse({"error": one_line(error)})
        return JSONResponse({"runs": curves, "about": about}, headers={"etag": tag})

    async def step(self, request: Request) -> Response:
        query = await read_query(request)
        return stream(self.inference.lines(lambda send: steps(query), waits=True))

    async def head(self, request: Request) -> Response:
        query = await read_query(request)
        try:
            inspection, kind = self.recent[query["translation"]], query["kind"]
            layer, head = int(query["layer"]), int(query["head"])
            if min(layer, head) < 0:
                raise IndexError
            weights = inspection.maps[kind][layer, head]
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            return JSONResponse({"error": "unknown head, or not of a recent translation; try translating again"})
        rows, columns = inspection.edges(kind)
        return JSONResponse({"rows": rows, "columns": columns, "weights": weights.tolist(), **summary(weights)})

    async def translate(self, request: Request) -> Response:
        query = await read_query(request)
        return stream(self.inference.lines(lambda send: self.translation(query, send)))

    def translation(self, query: Mapping[str, Any], send: Send) -> dict[str, Any]:
        """Compute the answer to `translate`; runs in the inference thread."""
        if self.model is None:
            raise UserError(self.why)
        model, tokenizer = self.model, self.tokenizer
        sentence = text_of(query)
        src = source_ids(model, tokenizer, sentence)
        search, prefix, off = self.search(query), self.prefix(query), self.off(query)
        tree = Tree()

        def observe(step: SearchStep) -> None:
            tree(step)
            live = [i for i, c in enumerate(tree.candidates) if c.length == len(tree.bounds) and c.fate != "dropped"]
            send({"so_far": labels(tokenizer, tree.tokens(live[0]))} if live else {})

        with ablate_heads(model, off):
            hypotheses = translate(constrained_model(model, tokenizer, sentence), src, search, prefix, observe)
            best = hypotheses[0]
            inspection = inspect(model, tokenizer, src, best.tokens)
        name = secrets.token_urlsafe(8)
        self.recent = dict([*self.recent.items(), (name, inspection)][-RECENT:])
        ids = [*best.tokens, model.config.eos_id][: len(inspection.target)]
        order = np.argsort(-inspection.log_probabilities, axis=1, kind="stable")[:, : ALTERNATIVES + 1]  # (T, 6)
        alternatives = [
            [{"id": int(i), "label": label, "p": float(np.exp(inspection.log_probabilities[t, i]))}
             for i, label in zip(row, labels(tokenizer, row.tolist()), strict=True)]
            for t, row in enumerate(order)
        ]  # fmt: skip
        return {
            "translation": name, "text": output_text(tokenizer, sentence, best.tokens),
            "finished": best.finished, "score": best.score,
            "log_probability": best.log_probability, "source": inspection.source, "target": inspection.target,
            "ids": ids, "decoder_input": inspection.decoder_input, "forced": len(prefix),
            "off": [str(head) for head in off],
            "p": [float(np.exp(inspection.log_probabilities[t, i])) for t, i in enumerate(ids)],
            "alternatives": alternatives, "heads": self.grids(inspection), "lens": self.lens(inspection),
            "beam": self.beam(tree, hypotheses),
        }  # fmt: skip

    def search(self, query: Mapping[str, Any]) -> dict[str, Any]:
        defaults = self.config.search
        values = {"beam": query.get("beam", min(defaults.beam, MAX_BEAM)), "alpha": query.get("alpha", defaults.alpha)}
        try:
            search: dict[str, Any] = {"beam": int(values["beam"]), "alpha": float(values["alpha"])}
            check_search(**search)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(one_line(error)) from None
        if search["beam"] > MAX_BEAM:
            raise UserError(f"beam: expected at most {MAX_BEAM}; got {search['beam']}; try {MAX_BEAM}")
        names = ("penalty", "max_extra", "full_beam", "finish_in_beam")
        return search | {name: getattr(defaults, name) for name in names}

    def prefix(self, query: Mapping[str, Any]) -> list[int]:
        ids, c = query.get("prefix", []), self.model.config
        limit = max_source_tokens(self.model)
        fits = isinstance(ids, list) and all(type(i) is int and 0 <= i < self.tokenizer.n_outputs for i in ids)
        if not fits or len(ids) > limit or any(i in (c.pad_id, c.bos_id) for i in ids) or c.eos_id in ids[:-1]:
            raise UserError(f"prefix: expected a list of at most {limit} valid token ids; try translating again")
        return ids

    def off(self, query: Mapping[str, Any]) -> list[Head]:
        known = {str(head): head for head in all_heads(self.model)}
        try:
            return [known[name] for name in query.get("off", [])]
        except (KeyError, TypeError):
            raise UserError(
                "off: expected the names of heads, such as cross.0.1; got an unknown one; try translating again"
            ) from None

    def grids(self, inspection: Inspection) -> dict[str, Any]:
        """Return the weights of all heads, rounded to one byte each, which is enough for a screen."""
        out: dict[str, Any] = {}
        for kind, maps in inspection.maps.items():
            rows, columns = inspection.edges(kind)
            summaries = [[summary(weights) for weights in layer] for layer in maps]
            levels = np.rint(maps * 255).astype(np.uint8)
            out[kind] = {"rows": rows, "columns": columns, "layers": len(maps), "heads": maps.shape[1],
                         "bytes": base64.b64encode(levels.tobytes()).decode(), "summary": summaries}  # fmt: skip
        return out

    def lens(self, inspection: Inspection) -> list[list[dict[str, Any]]]:
        """Return the token that each decoder layer would predict at each position (logit lens)."""
        return [
            [{"label": label, "p": float(p)} for label, p in zip(labels(self.tokenizer, ids.tolist()), ps, strict=True)]
            for ids, ps in zip(inspection.by_layer, inspection.by_layer_p, strict=True)
        ]

    def beam(self, tree: Tree, hypotheses: Any) -> dict[str, Any]:
        """Return the search tree; `winner` is the leaf of the best hypothesis."""
        texts = labels(self.tokenizer, [c.token for c in tree.candidates])
        nodes = [
            {"length": c.length, "parent": c.parent, "label": text, "log_probability": c.log_probability,
             "score": c.score, "fate": c.fate}
            for c, text in zip(tree.candidates, texts, strict=True)
        ]  # fmt: skip
        best = hypotheses[0]
        won = [
            i for i, c in enumerate(tree.candidates)
            if c.fate in (FINISHED, CUT) and (c.score, c.log_probability) == (best.score, best.log_probability)
        ]  # fmt: skip
        return {
            "nodes": nodes,
            "why": tree.stop_reason,
            "won": won[:1],
            "bounds": [to_json(np.array(b)) for b in tree.bounds],
        }


def stamp(file: Path) -> str:
    """Return a part of an ETag, which changes as a file grows."""
    try:
        stat = file.stat()
    except OSError:
        return "none"
    return f"{stat.st_mtime_ns}-{stat.st_size}"


def text_of(query: Mapping[str, Any]) -> str:
    text = query.get("text")
    if not isinstance(text, str):
        raise UserError("text: expected a sentence; got {type(text).__name__}; try typing one")
    return " ".join(text.encode("utf-8", "replace").decode().split())


async def read_query(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request; an empty one for any other body."""
    try:
        query = json.loads(await request.body())
    except (ValueError, RecursionError):
        return {}
    return query if isinstance(query, dict) else {}


def stream(lines: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(lines, media_type="application/x-ndjson")


def application(page: Page, port: int, token: str = "") -> Guard:
    """Return the application behind a Guard, which rejects requests that are not permitted."""
    return Guard(Starlette(routes=page.routes()), port, token)
