"""What the tests of public data sets share: a data root of their own, and no network."""

import urllib.error
import urllib.request

import pytest


@pytest.fixture
def empty_root(tmp_path, monkeypatch):
    """An empty data root, and no way to download but from files of this machine."""
    opened = urllib.request.urlopen

    def offline(address, *rest, **options):
        if str(address).startswith("file:"):
            return opened(address, *rest, **options)
        raise urllib.error.URLError("no route\nto host")

    root = tmp_path / "root"
    monkeypatch.setenv("ISTHMUS_DATA", str(root))
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    return root
