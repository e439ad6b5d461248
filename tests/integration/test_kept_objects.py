"""What a dump keeps as text, of a real server, and the script that makes it again: with no secret, and nothing else."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from pydantic import SecretStr

from pumphouse.archive.objects import SourceObjects, script
from pumphouse.dump.objects import read_objects
from pumphouse.dump.source import session
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import TargetSettings
from tests.support import mariadb

pytestmark = pytest.mark.row("R8")
PASSWORD = "S3cret-pw-4711"


def kept(server: TargetSettings, **who: Any) -> SourceObjects:
    with session(mariadb.as_source(server).model_copy(update=who)) as connection:
        found, unseen = read_objects(connection, ())
    return SourceObjects(cluster_id=1, begun=1, objects=tuple(found), unseen=tuple(unseen))


def ran(server: TargetSettings, text: str) -> None:
    """The script, as a user runs it."""
    client = ["mariadb", "--no-defaults", "--skip-ssl", f"--host={server.host}", f"--port={server.port}"]
    client += [f"--user={server.user}", f"--password={server.password.get_secret_value()}"]
    done = subprocess.run(client, input=text.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_or_a_message_cannot_put_a_statement_into_the_script(
    server: TargetSettings, target: TargetConnection
) -> None:
    target.execute("CREATE DATABASE `w\nSELECT 'INJECTED';\n-- x`")
    mariadb.new_user(target.execute, "dumper@'%'")
    try:
        target.execute("GRANT SELECT, SHOW DATABASES ON *.* TO dumper")
        found = kept(server, user="dumper", password=SecretStr("pw"))
        assert any("INJECTED" in each for each in found.unseen)
        lines = script(found, "of a dump\nSELECT 'INJECTED';").splitlines()
        assert [each for each in lines if "INJECTED" in each and not each.startswith("-- ")] == []
    finally:
        target.execute("DROP USER dumper")


def test_no_text_with_a_password_is_kept_and_each_that_is_left_out_is_named(
    server: TargetSettings, target: TargetConnection
) -> None:
    target.execute("CREATE DATABASE shop")
    target.execute("CREATE TABLE shop.t (id INT PRIMARY KEY, password TEXT, identified INT)")
    target.execute(f"CREATE PROCEDURE shop.bot() CREATE USER bot IDENTIFIED BY '{PASSWORD}'")
    target.execute(f"CREATE PROCEDURE shop.change() SET PASSWORD FOR bot = PASSWORD('{PASSWORD}')")
    target.execute(f"CREATE PROCEDURE shop.other() SET GLOBAL init_connect = \"SET password = '{PASSWORD}'\"")
    target.execute("CREATE VIEW shop.v AS SELECT password, identified FROM shop.t")
    target.execute(
        "CREATE TRIGGER shop.tr BEFORE INSERT ON shop.t FOR EACH ROW SET NEW.password = SHA2(NEW.password, 256)"
    )
    found = kept(server)
    assert PASSWORD.encode() not in found.to_json()
    for name in ("bot", "change", "other"):
        assert f"procedure shop.{name}: its text may have a password: it says IDENTIFIED or PASSWORD" in found.unseen
    assert {each.name for each in found.objects if each.name.startswith("shop.")} == {"shop.v", "shop.tr"}


def test_no_right_of_a_user_is_lost_without_a_word(server: TargetSettings, target: TargetConnection) -> None:
    target.execute("CREATE DATABASE identified_db")
    for user in ("u1", "u2"):
        mariadb.new_user(target.execute, f"{user}@'%'", PASSWORD)
    try:
        target.execute("GRANT ALL ON `identified_db`.* TO u1 REQUIRE SSL")
        target.execute("GRANT RELOAD ON *.* TO u1 WITH MAX_QUERIES_PER_HOUR 7 GRANT OPTION")
        # Who may not pass it on cannot give it: neither can who makes this server.
        target.execute(
            "INSERT INTO mysql.proxies_priv (Host, User, Proxied_host, Proxied_user) VALUES ('%', 'u2', '%', 'u1')"
        )
        target.execute("FLUSH PRIVILEGES")
        found = kept(server)
        (told,) = (" ".join(each.sql) for each in found.objects if each.name == "u1@%")
        (hashed,) = target.query("SELECT authentication_string FROM mysql.user WHERE User = 'u1'")[0]
        assert hashed
        assert str(hashed).encode() not in found.to_json()
        assert "GRANT ALL PRIVILEGES ON `identified_db`.* TO" in told
        assert "GRANT RELOAD ON *.* TO 'u1'@'%' WITH GRANT OPTION" in told
        assert "conditions of user u1@%: what it has under REQUIRE, and its limits" in found.unseen
        assert any("GRANT PROXY ON" in each and "u2" in each for each in found.unseen)
        target.execute("DROP USER u1, u2")
        ran(server, script(found, "a dump"))
        assert target.query(
            "SELECT privilege_type FROM information_schema.user_privileges WHERE grantee = \"'u1'@'%'\""
        )
    finally:
        target.execute("DROP USER IF EXISTS u1, u2")


def test_the_script_makes_the_objects_that_the_source_had(server: TargetSettings, target: TargetConnection) -> None:
    mariadb.new_user(target.execute, "u1@'%'")
    seen = "SELECT (SELECT y FROM shop.v), shop.a(), shop.b()"
    made = (
        "CREATE DATABASE shop",
        "SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES', collation_connection = 'latin1_bin', time_zone = '+05:00'",
        r"""CREATE FUNCTION shop."a"() RETURNS TEXT DETERMINISTIC RETURN CONCAT('a\b', COLLATION('x')) -- tail""",
        "CREATE EVENT shop.ev ON SCHEDULE EVERY 1 DAY STARTS '2020-01-01 00:00:00' COMMENT 'ENABLE' DO SELECT 1 -- tail",
        "CREATE EVENT shop.gone ON SCHEDULE AT '2037-01-01 00:00:00' DISABLE DO SELECT 1",
        "SET sql_mode = '', collation_connection = 'utf8mb4_general_ci', time_zone = '+00:00'",
        r"CREATE FUNCTION shop.b() RETURNS TEXT DETERMINISTIC RETURN 'a\\b'",
        r"CREATE VIEW shop.v AS SELECT 'a\\b' AS y",
        "GRANT EXECUTE ON FUNCTION shop.a TO u1",
    )
    events = (
        "SELECT event_name, status, time_zone, sql_mode, starts, execute_at FROM information_schema.events ORDER BY 1"
    )
    try:
        for statement in made:
            target.execute(statement)
        values, before = target.query(seen), target.query(events)
        assert values == [("a\\b", "a\\blatin1_bin", "a\\b")]
        found = kept(server)
        for statement in ("DROP DATABASE shop", "DROP USER u1", "CREATE DATABASE shop"):
            target.execute(statement)
        target.execute("CREATE VIEW shop.v AS SELECT 'as a restore makes it' AS y")
        ran(server, script(found, "a dump"))
        assert target.query(seen) == values
        assert target.query(events) == [(each[0], "DISABLED", *each[2:]) for each in before]
        assert before[0][1] == "ENABLED"
        assert target.query("SELECT COUNT(*) FROM mysql.procs_priv WHERE User = 'u1'") == [(1,)]
    finally:
        target.execute("DROP USER u1")
