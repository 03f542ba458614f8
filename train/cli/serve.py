"""`serve`: serve a local web page that steps through a backward pass and inspects a trained model."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import Device, app, use_device
from train.cli.options import number_option, print_stderr
from train.errors import UserError, one_line, pip_install

HOST = "127.0.0.1"


@app.command(
    epilog="The server listens on 127.0.0.1 only, and the printed address contains an access token. To use it from"
    " another machine: [b]ssh -L 8017:127.0.0.1:8017 HOST[/b], then open the same address. Ctrl-C stops the server."
)
def serve(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]", help="Run folder written by `train`; without it, the page has only the view Step."
        ),
    ] = None,
    port: Annotated[int, number_option(int, "[0, 65535]", metavar="N", help="Port; 0: any free port.")] = 8017,
    also: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Another run for the view Curves; may be repeated.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Serve a web page that shows a model's blocks, heads and search, a backward pass step by step, and curves."""
    import socket

    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise UserError(f"serve: {missing[0]} is not installed; try {pip_install('page')}")
    for path in also or ():
        if not path.is_dir():
            raise UserError(f"--also: expected a run folder; got {path}, which is not a folder; try the path of a run")
    import uvicorn

    from train.viewer.connections import server_config
    from train.viewer.curves import runs_by_name
    from train.viewer.server import Page, application

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen()
        except OSError as error:
            raise UserError(f"--port: expected a free port; got {port} ('{error.strerror}'); try --port 0") from None
        use_device(device)
        page = load_page([run, *(also or ())]) if run else Page(runs_by_name(also or ()))
        port = listener.getsockname()[1]
        guarded = application(page, port)
        print(f"http://{HOST}:{port}/?token={guarded.token}")
        print_stderr("Open this address in a browser on this machine; Ctrl-C stops the server.")
        sys.stdout.flush()

        class Server(uvicorn.Server):
            """A server that stops without waiting for a running translation."""

            def handle_exit(self, sig: int, frame: Any) -> None:
                page.job_runner.cancel()
                super().handle_exit(sig, frame)

        Server(server_config(guarded, timeout_graceful_shutdown=5)).run(sockets=[listener])


def load_page(runs: list[Path]) -> Any:
    """Return the page for the first run's model or, if it cannot be loaded, a page with the reason and the curves."""
    from train.run.checkpoint import load_with_origin
    from train.run.folder import RunFolder
    from train.viewer.curves import runs_by_name
    from train.viewer.examples import validation_sentences
    from train.viewer.inspection import check_heads
    from train.viewer.server import Page

    try:
        model, tokenizer, config, origin = load_with_origin(runs[0], "", print_stderr)
        if config.data.task == "masking":
            raise UserError(
                f"{runs[0]}: expected a translation model, a language model, a parser, a classifier or a tagger; got "
                "a masked language model"
            )
        if model.data_kind == "pairs":
            check_heads(model)
        examples = validation_sentences(runs[0], tokenizer, config)
        page = Page(runs_by_name(runs), model, tokenizer, config, origin.caption, examples)
        page.warm_up()
        return page
    except UserError as error:
        if not RunFolder(runs[0]).metrics_file.is_file():
            raise
        page = Page(runs_by_name(runs))
        page.unavailable_reason = one_line(error)
        return page
