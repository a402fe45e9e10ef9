"""A browser for the tests of pages; one for all tests of a module, with a fresh context for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.browser import Browser, Page, opened


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.page()
    yield page
    page.close()
