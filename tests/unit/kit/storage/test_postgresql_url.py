"""Which parameters of a PostgreSQL URL the driver gets, and how, without a server."""

from __future__ import annotations

from sqlalchemy import make_url

from evenmesh_kit.storage.postgresql_url import for_driver, known_parameters, unknown_parameters


def test_parameters_of_libpq_go_to_the_driver_as_libpq_writes_them() -> None:
    url = make_url("postgresql+asyncpg://u:p@db/e?sslmode=verify-full&sslrootcert=/a b.pem&ssl=require")
    left, arguments = for_driver(url)
    assert left.render_as_string(hide_password=False) == "postgresql+asyncpg://u:p@db/e?ssl=require"
    assert arguments == {"dsn": "postgresql:///?sslmode=verify-full&sslrootcert=%2Fa+b.pem"}


def test_a_url_without_any_is_left_as_it_is() -> None:
    url = make_url("postgresql+asyncpg://db/e?ssl=require")
    assert for_driver(url) == (url, {})


def test_what_means_nothing_is_named() -> None:
    url = make_url("postgresql+asyncpg://db/e?sslmode=require&options=x&channel_binding=require")
    assert unknown_parameters(url) == ["channel_binding", "options"]
    assert {"sslmode", "application_name", "ssl"} <= set(known_parameters())
