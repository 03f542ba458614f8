"""What the page asks the server for (`npx-transformer serve`): its files, by fixed names, and answers in JSON.

    GET  /, /NAME             the page: train/viewer/page/
    GET  /api/about           the run, or that there is none
    GET  /api/curves          what the runs' metrics.jsonl have; 304 where none has grown
    POST /api/step            forward and backward, node by node
    POST /api/translate       lines of JSON as the search goes on; the last has everything but the weights' digits
    POST /api/head            one head of one of the last translations, with all digits

Starlette and uvicorn (the extra `page`) are imported here alone. One thread computes, for a head that is switched off
is off for whoever uses the model; who asks for a translation ends the one before.
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
    ABOUT,
    Head,
    Seen,
    all_heads,
    labels,
    most_pieces,
    see,
    source_ids,
    summary,
    translated,
    without,
)
from train.viewer.step import plain, steps

PAGE = Path(__file__).with_name("page")
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FILES = {path.name: (path.read_bytes(), KINDS[path.suffix]) for path in sorted(PAGE.iterdir()) if path.suffix in KINDS}
MOST_BEAM, NEXT, KEPT = 8, 5, 8  # hypotheses, alternatives of a piece, translations whose heads can be opened
Tell = Callable[[Mapping[str, Any]], None]


class Cancelled(Exception):
    """Somebody asked anew, or has gone."""


class Inference:
    """One job at a time in one thread."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.ended = threading.Event()  # of the job that the next one ends

    def end(self) -> None:
        """Ends the job that runs, at its next step, unless it is one that waits."""
        self.ended.set()

    async def lines(self, job: Callable[[Tell], Mapping[str, Any]], waits: bool = False) -> AsyncIterator[bytes]:
        """What a job tells and in the end returns, as lines of JSON; {"error"} for a mistake of the user's.

        It ends the job that runs, unless it `waits` for that; a job that waits is ended by none.
        """
        ended = threading.Event()
        if not waits:
            self.end()
            self.ended = ended
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(item: Mapping[str, Any] | None) -> None:
            line = None if item is None else json.dumps(item, allow_nan=False).encode() + b"\n"
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(queue.put_nowait, line)

        def tell(item: Mapping[str, Any]) -> None:
            if ended.is_set():
                raise Cancelled
            put(item)

        def work() -> None:
            try:
                tell({"begun": True})  # nothing is begun that nobody waits for
                put(job(tell))
            except Cancelled:
                put({"cancelled": True})
            except (UserError, FloatingPointError) as error:
                put({"error": one_line(error)})
            except Exception:
                traceback.print_exc()
                put({"error": "a fault of the program, not yours; the terminal has the lines to report"})
            put(None)

        self.thread.submit(work)
        try:
            while (line := await queue.get()) is not None:
                yield line
        finally:
            ended.set()


class Page:
    """What the page shows: a model of a translation, if there is one, and the metrics of runs, by name."""

    def __init__(
        self, runs: Mapping[str, Path], model: Any = None, tokenizer: Any = None, config: Any = None, source: str = ""
    ) -> None:
        self.runs = {name: RunFolder(run) for name, run in runs.items()}
        self.model, self.tokenizer, self.config, self.source = model, tokenizer, config, source
        self.why = "" if model else "no run was given: npx-transformer serve RUN"
        self.inference = Inference()
        self.seen: dict[str, Seen] = {}  # the last translations, by name

    def routes(self) -> list[Route]:
        files = [Route(f"/{name}", self.file, methods=["GET"]) for name in FILES if name != "index.html"]
        asked = [Route(f"/api/{name}", getattr(self, name), methods=["POST"]) for name in ("step", "translate", "head")]
        told = [Route(f"/api/{name}", getattr(self, name), methods=["GET"]) for name in ("about", "curves")]
        return [Route("/", self.file, methods=["GET"]), *files, *asked, *told]

    async def file(self, request: Request) -> Response:
        content, kind = FILES[request.url.path[1:] or "index.html"]
        return Response(content, media_type=kind)

    async def about(self, request: Request) -> Response:
        told: dict[str, Any] = {"runs": [*self.runs], "why": self.why, "source": self.source}
        if self.model is not None:
            c, search = self.model.config, self.config.search
            told["model"] = {
                "layers": c.n_layers, "heads": c.n_heads, "d_model": c.d_model, "parameters": self.model.n_parameters(),
                "beam": min(search.beam, MOST_BEAM), "most_beam": MOST_BEAM, "alpha": search.alpha, "kinds": ABOUT,
            }  # fmt: skip
        return JSONResponse(told)

    async def curves(self, request: Request) -> Response:
        tag = f'"{" ".join(stamp(run.metrics_file) for run in self.runs.values())}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        about = {name: {"title": title, "log": logarithmic} for name, (title, _, logarithmic) in PANELS.items()}
        try:
            found = await asyncio.to_thread(lambda: {name: series(run.metrics()) for name, run in self.runs.items()})
        except UserError as error:
            return JSONResponse({"error": one_line(error)})
        return JSONResponse({"runs": found, "about": about}, headers={"etag": tag})

    async def step(self, request: Request) -> Response:
        asked = await question(request)
        return stream(self.inference.lines(lambda tell: steps(asked), waits=True))

    async def head(self, request: Request) -> Response:
        asked = await question(request)
        try:
            seen, kind = self.seen[asked["translation"]], asked["kind"]
            layer, head = int(asked["layer"]), int(asked["head"])
            if min(layer, head) < 0:
                raise IndexError
            weights = seen.maps[kind][layer, head]
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            return JSONResponse({"error": "expected a head of a recent translation; got none; try translating again"})
        rows, columns = seen.edges(kind)
        return JSONResponse({"rows": rows, "columns": columns, "weights": weights.tolist(), **summary(weights)})

    async def translate(self, request: Request) -> Response:
        asked = await question(request)
        return stream(self.inference.lines(lambda tell: self.translation(asked, tell)))

    def translation(self, asked: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
        """The answer to `translate`, in the thread that computes."""
        if self.model is None:
            raise UserError(self.why)
        model, tokenizer = self.model, self.tokenizer
        src = source_ids(model, tokenizer, text_of(asked))
        search, prefix, off = self.search(asked), self.prefix(asked), self.off(asked)
        tree = Tree()

        def observe(step: SearchStep) -> None:
            tree(step)
            live = [i for i, c in enumerate(tree.candidates) if c.length == len(tree.bounds) and c.fate != "dropped"]
            tell({"so_far": labels(tokenizer, tree.tokens(live[0]))} if live else {})

        with without(model, off):
            found = translated(model, src, search, prefix, observe)
            best = found[0]
            seen = see(model, tokenizer, src, best.tokens)
        name = secrets.token_urlsafe(8)
        self.seen = dict([*self.seen.items(), (name, seen)][-KEPT:])
        ids = [*best.tokens, model.config.eos_id][: len(seen.target)]
        order = np.argsort(-seen.log_probabilities, axis=1, kind="stable")[:, : NEXT + 1]  # (T, 6)
        alternatives = [
            [{"id": int(i), "label": label, "p": float(np.exp(seen.log_probabilities[t, i]))}
             for i, label in zip(row, labels(tokenizer, row.tolist()), strict=True)]
            for t, row in enumerate(order)
        ]  # fmt: skip
        return {
            "translation": name, "text": tokenizer.decode(best.tokens), "finished": best.finished, "score": best.score,
            "log_probability": best.log_probability, "source": seen.source, "target": seen.target, "ids": ids,
            "written": seen.written, "forced": len(prefix), "off": [str(head) for head in off],
            "p": [float(np.exp(seen.log_probabilities[t, i])) for t, i in enumerate(ids)], "alternatives": alternatives,
            "heads": self.grids(seen), "lens": self.lens(seen), "beam": self.beam(tree, found),
        }  # fmt: skip

    def search(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        own = self.config.search
        given = {"beam": asked.get("beam", min(own.beam, MOST_BEAM)), "alpha": asked.get("alpha", own.alpha)}
        try:
            search: dict[str, Any] = {"beam": int(given["beam"]), "alpha": float(given["alpha"])}
            check_search(**search)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(one_line(error)) from None
        if search["beam"] > MOST_BEAM:
            raise UserError(f"beam: expected at most {MOST_BEAM} to look at; got {search['beam']}; try {MOST_BEAM}")
        return search | {"penalty": own.penalty, "max_extra": own.max_extra}

    def prefix(self, asked: Mapping[str, Any]) -> list[int]:
        ids, c = asked.get("prefix", []), self.model.config
        most = most_pieces(self.model)
        fits = isinstance(ids, list) and all(type(i) is int and 0 <= i < self.tokenizer.n_outputs for i in ids)
        if not fits or len(ids) > most or any(i in (c.pad_id, c.bos_id) for i in ids) or c.eos_id in ids[:-1]:
            raise UserError(f"prefix: expected at most {most} pieces; got something else; try translating again")
        return ids

    def off(self, asked: Mapping[str, Any]) -> list[Head]:
        known = {str(head): head for head in all_heads(self.model)}
        try:
            return [known[name] for name in asked.get("off", [])]
        except (KeyError, TypeError):
            raise UserError("off: expected heads as cross.0.1; got another; try translating again") from None

    def grids(self, seen: Seen) -> dict[str, Any]:
        """All heads, a weight in one byte, which is what a screen shows."""
        out: dict[str, Any] = {}
        for kind, maps in seen.maps.items():
            rows, columns = seen.edges(kind)
            inside = [[summary(weights) for weights in layer] for layer in maps]
            levels = np.rint(maps * 255).astype(np.uint8)
            out[kind] = {"rows": rows, "columns": columns, "layers": len(maps), "heads": maps.shape[1],
                         "bytes": base64.b64encode(levels.tobytes()).decode(), "summary": inside}  # fmt: skip
        return out

    def lens(self, seen: Seen) -> list[list[dict[str, Any]]]:
        """What each decoder layer would write at each position."""
        return [
            [{"label": label, "p": float(p)} for label, p in zip(labels(self.tokenizer, ids.tolist()), ps, strict=True)]
            for ids, ps in zip(seen.by_layer, seen.by_layer_p, strict=True)
        ]

    def beam(self, tree: Tree, found: Any) -> dict[str, Any]:
        """The tree of the search; `best` are the hypotheses found, to be held against its leaves."""
        texts = labels(self.tokenizer, [c.token for c in tree.candidates])
        nodes = [
            {"length": c.length, "parent": c.parent, "label": text, "log_probability": c.log_probability,
             "score": c.score, "fate": c.fate}
            for c, text in zip(tree.candidates, texts, strict=True)
        ]  # fmt: skip
        best = found[0]
        won = [
            i for i, c in enumerate(tree.candidates)
            if c.fate in (FINISHED, CUT) and (c.score, c.log_probability) == (best.score, best.log_probability)
        ]  # fmt: skip
        return {"nodes": nodes, "why": tree.stop_reason, "won": won[:1], "bounds": [plain(np.array(b)) for b in tree.bounds]}


def stamp(file: Path) -> str:
    """What changes as a file grows."""
    try:
        stat = file.stat()
    except OSError:
        return "none"
    return f"{stat.st_mtime_ns}-{stat.st_size}"


def text_of(asked: Mapping[str, Any]) -> str:
    text = asked.get("text")
    if not isinstance(text, str):
        raise UserError("text: expected a sentence; got none; try one")
    return " ".join(text.encode("utf-8", "replace").decode().split())


async def question(request: Request) -> dict[str, Any]:
    """The JSON object of a request; an empty one for anything else."""
    try:
        asked = json.loads(await request.body())
    except (ValueError, RecursionError):
        return {}
    return asked if isinstance(asked, dict) else {}


def stream(lines: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(lines, media_type="application/x-ndjson")


def application(page: Page, port: int, token: str = "") -> Guard:
    """The whole server."""
    return Guard(Starlette(routes=page.routes()), port, token)
