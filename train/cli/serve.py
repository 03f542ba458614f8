"""`serve`: a page in the browser that steps through a backward pass and looks inside of a trained model."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import Device, app, use_device
from train.cli.options import number
from train.errors import UserError, one_line


@app.command(
    epilog="The page is for this machine alone: it listens on 127.0.0.1, and the printed address has a token. From"
    " another machine: [b]ssh -L 8017:127.0.0.1:8017 HOST[/b], then the same address. Ctrl-C ends it."
)
def serve(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Run folder of `train`; without: Step alone.")
    ] = None,
    port: Annotated[int, number(int, "[0, 65535]", metavar="N", help="0: any that is free.")] = 8017,
    also: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="One run more in Curves; may be repeated.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Look inside in a browser: step by step through autograd, translations, heads, beam, curves."""
    import socket

    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise UserError(f'serve: expected {missing[0]}; got none; try pip install "npx-transformer[page]"')
    for other in also or ():
        if not other.is_dir():
            raise UserError(f"--also: expected a run folder; got {other}; try the --out of a training")
    import uvicorn

    from train.viewer.curves import by_name
    from train.viewer.server import Page, application

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()
        except OSError as error:
            raise UserError(f"--port: expected a free one; got {port} ('{error.strerror}'); try --port 0") from None
        use_device(device)
        page = of_runs([run, *(also or ())]) if run else Page(by_name(also or ()))
        guarded = application(page, listening.getsockname()[1])
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={guarded.token}")
        print("Open this address in a browser on this machine; Ctrl-C ends the server.", file=sys.stderr, flush=True)
        sys.stdout.flush()
        quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}

        class Server(uvicorn.Server):
            """Does not wait for a translation that runs."""

            def handle_exit(self, sig: int, frame: Any) -> None:
                page.inference.cancel()
                super().handle_exit(sig, frame)

        Server(uvicorn.Config(guarded, timeout_graceful_shutdown=5, **quiet)).run(sockets=[listening])


def of_runs(runs: list[Path]) -> Any:
    """The page of the first run's model; where it cannot be shown the page has the curves, and says why."""
    from train.run.checkpoint import load_with_origin
    from train.run.folder import RunFolder
    from train.viewer.curves import by_name
    from train.viewer.server import Page

    try:
        found = load_with_origin(runs[0], "translation", lambda text: print(text, file=sys.stderr))
        return Page(by_name(runs), *found)
    except UserError as error:
        if not RunFolder(runs[0]).metrics_file.is_file():
            raise
        page = Page(by_name(runs))
        page.why = one_line(error)
        return page
