"""The keys of a federation: what TLS and Flower make of them, who may read them, and what is never overwritten."""

from __future__ import annotations

import socket
import ssl
import stat
import sys
import threading
from pathlib import Path

import pytest

from coterie.errors import BadInput
from coterie.shipping.flower import keys

pytest.importorskip("flwr")


def connected(server: Path, authority: Path, host: str) -> str:
    """What a client hears from a server with the keys in a folder, which it takes to be `host`."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server / keys.CERTIFICATE, server / keys.SERVER_KEY)
    theirs = ssl.create_default_context(cafile=str(authority / keys.AUTHORITY))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    one, other = socket.socketpair()

    def serve() -> None:
        with one:
            try:
                with ours.wrap_socket(one, server_side=True) as line:
                    line.sendall(b"hello")
            except ssl.SSLError:
                pass  # the client would not have it

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with other, theirs.wrap_socket(other, server_hostname=host) as line:
            return line.recv(5).decode()
    finally:
        thread.join()


def test_a_client_trusts_the_server_under_each_of_its_names(tmp_path: Path) -> None:
    keys.make_keys(tmp_path / "keys", hosts=["fl.example.org", "10.0.0.3", "::1"])
    for host in ("localhost", "127.0.0.1", "fl.example.org", "10.0.0.3", "::1"):
        assert connected(tmp_path / "keys", tmp_path / "keys", host) == "hello"


def test_a_client_does_not_trust_another_name_or_another_authority(tmp_path: Path) -> None:
    keys.make_keys(tmp_path / "one")
    keys.make_keys(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"fl\.example\.org"):
        connected(tmp_path / "one", tmp_path / "one", "fl.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(tmp_path / "one", tmp_path / "other", "localhost")


def test_a_client_proves_itself_with_the_key_that_was_registered(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys.make_keys(tmp_path, clients=["ward-1", "ward-2"])
    for name in ("ward-1", "ward-2"):
        private = serialization.load_ssh_private_key((tmp_path / name).read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert private.curve.name == "secp384r1"
        assert try_load_public_key(tmp_path / f"{name}.pub") == public_key_to_bytes(private.public_key())
        signature = private.sign(b"it is me", ec.ECDSA(hashes.SHA256()))
        private.public_key().verify(signature, b"it is me", ec.ECDSA(hashes.SHA256()))
    assert (tmp_path / "ward-1").read_bytes() != (tmp_path / "ward-2").read_bytes()


def test_private_keys_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    written = keys.make_keys(folder, clients=["a"])
    assert sorted(written) == sorted(folder.iterdir())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in written}
    assert {name for name, mode in modes.items() if not mode} == {"a", keys.SERVER_KEY}
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0


def test_a_client_can_join_later(tmp_path: Path) -> None:
    keys.make_keys(tmp_path, clients=["a"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert keys.make_keys(tmp_path, clients=["b"]) == [tmp_path / "b", tmp_path / "b.pub"]
    assert {path: path.read_bytes() for path in before} == before


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    keys.make_keys(tmp_path, clients=["a"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(BadInput, match=r"a, a\.pub already"):
        keys.make_keys(tmp_path, clients=["b", "a"])
    with pytest.raises(BadInput, match=r"ca\.crt, server\.pem, server\.key already"):
        keys.make_keys(tmp_path, hosts=["fl.example.org"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    hosts = ["https://a.org", "a.org:443", "fl.example.org"]
    with pytest.raises(BadInput) as refused:
        keys.make_keys(folder, hosts, ["../a", "b.pub", "ca.crt", "c", ""])
    problems = refused.value.problems
    for text in (*hosts[:2], "../a", "b.pub", "ca.crt", ""):
        assert sum(f"= {text!r} " in problem for problem in problems) == 1, text
    assert len(problems) == 6
    assert not folder.exists()


def test_without_flower_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)  # as where it is not installed
    with pytest.raises(BadInput, match=r"coterie\[flower\]"):
        keys.make_keys(tmp_path)
