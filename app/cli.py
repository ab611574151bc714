"""The command `omnihear`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.command.outputs import OutputFormat
from app.command.wishes import Wishes
from app.schemas.requests import Channels
from app.settings import (
    CLIENT_KEY_VARIABLE,
    PROFILE_VARIABLE,
    SettingsError,
    default_profile,
    load_settings,
    profile_names,
    variables,
)

cli = typer.Typer(
    name="omnihear",
    help="Speech to text over HTTP on Qwen2.5-Omni.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        "-p",
        envvar=PROFILE_VARIABLE,
        help="A name from `omnihear profiles`, or a .toml file.",
        autocompletion=profile_names,
    ),
]


@cli.command()
def serve(
    profile: Profile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; over the profile's.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; over the profile's.", min=0, max=65535)] = None,
) -> None:
    """Serve over HTTP until interrupted.

    Exit status: 0 after SIGTERM or SIGINT, 2 settings cannot be served, 3 start-up failed or the engine died.
    """
    import uvicorn

    from app import logs, tracing
    from app.main import create_app

    settings = load_settings(profile)
    chosen = settings.server
    logs.configure(chosen.log_level, style=chosen.log_format, content=chosen.log_content)
    tracing.configure()
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=host or settings.server.host,
        port=settings.server.port if port is None else port,
        log_config=None,
        access_log=False,  # ours carries the request id
        server_header=False,
    )
    server = uvicorn.Server(config)
    server.run()
    if not server.started:  # or has failed since, see `Supervisor.leave`
        raise typer.Exit(3)


@cli.command()
def transcribe(
    files: Annotated[list[Path], typer.Argument(help="Audio files; - for standard input.")],
    *,
    server: Annotated[
        str | None, typer.Option("--server", "-s", help="URL of a running service; without, one is started.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar=CLIENT_KEY_VARIABLE, help="Of that service, where it asks for one.")
    ] = None,
    profile: Profile = None,
    formats: Annotated[
        list[OutputFormat] | None, typer.Option("--format", "-f", help="What to write; may be repeated. [default: txt]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder to write to, - for standard output; beside each file without."),
    ] = None,
    language: Annotated[str | None, typer.Option("--language", "-l", help="Of the speech.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Words that are likely to occur.")] = None,
    hotwords: Annotated[list[str] | None, typer.Option("--hotword", help="A name or term; may be repeated.")] = None,
    channels: Annotated[Channels, typer.Option(help="What becomes of the channels.")] = Channels.MIX,
    temperature: Annotated[float, typer.Option(min=0, max=1, help="0 decodes greedily.")] = 0.0,
    parallel: Annotated[int, typer.Option("--parallel", "-j", min=1, help="Files at a time.")] = 4,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Do again what is done.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Tell of failures alone.")] = False,
) -> None:
    """Transcribe files, and skip those whose transcripts are there and not older.

    Exit status: 0 every file has its transcript, 1 some have, 3 none has, 2 nothing was tried.
    """
    from app.command.main import Order, run

    order = Order(
        files=tuple(files),
        server=server,
        api_key=api_key,
        profile=profile,
        formats=tuple(dict.fromkeys(formats or [OutputFormat.TXT])),
        output=output,
        parallel=parallel,
        overwrite=overwrite,
        quiet=quiet,
    )
    wishes = Wishes(
        language=language,
        prompt=prompt,
        hotwords=tuple(hotwords or ()),
        channels=channels,
        temperature=temperature,
    )
    raise typer.Exit(run(order, wishes))


@cli.command()
def profiles(names: Annotated[list[str] | None, typer.Argument(help="Profiles to show; all without.")] = None) -> None:
    """Show profiles as they resolve here: file, environment and defaults together."""
    shown = names or profile_names()
    resolved = {name: load_settings(name) for name in shown}
    table = Table(title=f"default here: {default_profile()}")
    table.add_column("key", no_wrap=True)
    for name in resolved:
        table.add_column(name, overflow="fold")
    for key in variables().values():
        section, field = key.split(".", 1)
        table.add_row(key, *(str(getattr(getattr(settings, section), field)) for settings in resolved.values()))
    Console().print(table)


@cli.command()
def selftest(profile: Profile = None) -> None:
    """Transcribe the bundled clips in every encoder mode of this machine; fails where one differs."""
    from engine.selftest import modes_here, run

    config = load_settings(profile).engine
    modes = modes_here()
    table = Table(title=f"{config.model}, compared with the eager encoder")
    for column in ("mode", "verdict", "equal texts", "encoder's difference", "seconds", "note"):
        table.add_column(column, overflow="fold")
    passed = True
    console = Console()
    with console.status(f"encoder modes: {', '.join(modes)}"):
        for verdict in run(config, modes):
            passed &= verdict.ok
            word = "pass" if verdict.ok else "FAIL"
            console.print(f"{verdict.mode}: {word} after {verdict.seconds:.0f} s")  # a mode takes half a minute
            error = "-" if verdict.error is None else f"{verdict.error:.1e}"
            texts = f"{verdict.equal} of {verdict.texts}"
            table.add_row(verdict.mode, word, texts, error, f"{verdict.seconds:.0f}", escape(verdict.note))
    console.print(table)
    raise typer.Exit(0 if passed else 1)


def main() -> None:
    """Run the command line; settings that cannot be served are told without a traceback."""
    try:
        cli()
    except SettingsError as error:
        Console(stderr=True).print(f"omnihear cannot start:\n{error}", markup=False, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
