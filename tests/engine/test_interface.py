import subprocess
import sys

LIGHT = "engine.interface engine.config engine.prompt engine.scripted app.settings app.transcription.service app.cli"


def test_the_contract_and_what_stands_on_it_load_without_torch_and_vllm() -> None:
    imports = "; ".join(f"import {module}" for module in LIGHT.split())
    code = f"{imports}; import sys; print(*sorted({{'torch', 'vllm', 'transformers'}} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
