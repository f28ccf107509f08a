"""`module:function`: found beside the definition, with `sys.path` as it was before."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from treadle.tools.imported import imported


def test_two_that_import_side_by_side_keep_each_others_path(tmp_path: Path) -> None:
    """The first one to end takes its folder off the path again; the second still needs it."""
    (tmp_path / "imported_first.py").write_text("import time\ntime.sleep(0.2)\ndef f(): return 1\n")
    (tmp_path / "imported_second.py").write_text(
        "import time\ntime.sleep(0.3)\nfrom imported_third import f\n"
    )
    (tmp_path / "imported_third.py").write_text("def f(): return 3\n")
    before = list(sys.path)
    found: dict[str, object] = {}

    def look(module: str) -> None:
        found[module] = imported(f"{module}:f", str(tmp_path), LookupError)()

    threads = [threading.Thread(target=look, args=(m,)) for m in ("imported_first", "imported_second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"imported_first": 1, "imported_second": 3}
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "said"),
    [("imported_nowhere:f", "cannot import imported_nowhere"), ("json:nothing", "json has no function")],
)
def test_what_is_not_there_is_refused_in_the_callers_way(name: str, said: str) -> None:
    with pytest.raises(LookupError, match=said):
        imported(name, None, LookupError)
