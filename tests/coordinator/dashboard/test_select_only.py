"""The dashboard over PostgreSQL as the manual advises: with a user of its own that may read and do nothing else."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from coordinator.dashboard.pages import NAVIGATION
from coordinator.home.home import CoordinatorHome
from tests.coordinator.dashboard.made_up import Fleet, lived_in
from tests.coordinator.dashboard.visitor import Visitor, add_user, served

pytestmark = pytest.mark.usefixtures("cheap_passwords")

_ROLE = "mien_dashboard"


@pytest.fixture
def reader_url(postgres_url: str) -> Iterator[str]:
    """The database's URL for a user that may only SELECT, as docs/operator/production.md makes one."""
    password = secrets.token_urlsafe(16)
    role = sql.Identifier(_ROLE)
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))
        owner.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role))
        owner.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(role))
        owner.execute(sql.SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {}").format(role))
    place = urlsplit(postgres_url)
    yield place._replace(netloc=f"{_ROLE}:{password}@127.0.0.1:{place.port}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
        owner.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_user_that_may_only_select_serves_every_page(
    postgres_url: str, reader_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet: Fleet = lived_in(tmp_path, database_url=postgres_url)
    try:
        with psycopg.connect(reader_url) as reader, pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("DELETE FROM tasks")
        monkeypatch.setenv("MIEN_COORDINATOR_DATABASE_URL", reader_url)
        home = CoordinatorHome(fleet.home.folder)
        assert home.resolve().config.database_url == reader_url
        add_user(home)
        with served(home) as address:
            visitor = Visitor(address)
            assert visitor.sign_in().status == 303
            for path in _linked(visitor):
                assert visitor.get(path).status == 200, path
    finally:
        fleet.close()


def _linked(visitor: Visitor) -> list[str]:
    """Return the pages of the navigation and those that they link to."""
    found = {href for _, _, href in NAVIGATION}
    for path in list(found):
        found |= set(re.findall(r'href="(/(?:tasks|models)/[^"#?]+)"', visitor.get(path).text))
    assert len(found) > len(NAVIGATION)
    return sorted(found)
