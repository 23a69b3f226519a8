"""One target under atheris, as a process: `python -m tests.fuzz.process TARGET [libFuzzer's options and folders]`.

The instrumentation of imports covers the codec's modules; generated functions are made by `exec` and are instrumented
one by one.
"""

import shlex
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["segstore.wire"], enable_loader_override=False):
    from segstore.wire.codec import codec
    from segstore.wire.codec.generate.source import Source

_plain_compiled = Source.compiled


def _instrumented(*arguments: Any) -> Any:
    return atheris.instrument_func(_plain_compiled(*arguments))


def main() -> None:
    target, *options = sys.argv[1:]
    Source.compiled = _instrumented  # type: ignore[method-assign]
    codec.decoder_of.cache_clear()

    from tests.fuzz.targets import TARGETS

    # libFuzzer starts itself again to merge, through a shell
    again = " ".join(map(shlex.quote, (sys.executable, "-m", "tests.fuzz.process", target)))
    atheris.Setup([again, *options], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
