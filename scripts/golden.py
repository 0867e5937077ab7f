"""Check that the golden numbers in the tests are those which the scripts beside this one print.

Each script recomputes its numbers with somebody else's software. A printed number must stand in one of the Rust files named
with the script, to the digits that the comparison in the test relies on.
"""

import contextlib
import io
import pathlib
import re
import runpy
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parent / "crates" / "twostep" / "src"
SCRIPTS = {
    "special_golden.py": ["special.rs", "prior.rs"],
    "diagnostics_golden.py": ["mcmc/diagnostics.rs", "mcmc/psis.rs"],
}
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:_\d+)*(?:\.\d+(?:_\d+)*)?(?:[eE][+-]?\d+)?(?![\w.])")
# Sixteen digits are printed; sums in another order change the last two.
TOLERANCE = 1e-13


def numbers(text):
    return [float(found.replace("_", "")) for found in NUMBER.findall(text)]


def main():
    missing = 0
    for script, files in SCRIPTS.items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(HERE / script), run_name="__main__")
        known = sorted(n for file in files for n in numbers((SOURCES / file).read_text()))
        wanted = numbers(printed.getvalue())
        if not wanted:
            sys.exit(f"{script} printed no numbers")
        for number in wanted:
            if not any(abs(number - k) <= TOLERANCE * max(abs(k), 1e-300) for k in known):
                print(f"{script}: {number!r} stands in none of {', '.join(files)}")
                missing += 1
        print(f"{script}: {len(wanted)} numbers checked")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
