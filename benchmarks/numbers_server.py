"""The real service on the engine of `benchmarks.long_speech`, for `benchmarks.long_audio`."""


def main() -> None:
    # Imported here: decode workers import the main module of the process that starts them.
    import uvicorn

    from app import logs
    from app.main import create_app
    from app.settings import load_settings
    from benchmarks.long_speech import hear_numbers
    from engine.interface import SpeechRequest
    from engine.scripted import Act, ScriptedEngine

    def script(request: SpeechRequest) -> Act:
        engine.requests.clear()  # kept for tests; here they would be the whole file
        return hear_numbers(request)

    engine = ScriptedEngine(script)
    settings = load_settings()
    logs.configure("info")
    app = create_app(settings, engine=engine)
    uvicorn.run(app, host="127.0.0.1", port=0, log_config=None, access_log=False)


if __name__ == "__main__":
    main()
