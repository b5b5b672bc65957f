from __future__ import annotations

import socket

from deploy.local.ports import DEFAULT_PORTS, choose_ports, free_port, is_free


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_a_taken_port_is_replaced_and_the_others_are_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, kept = server.getsockname()[1], free_port()
        chosen = choose_ports({"one": taken, "two": kept})
    assert chosen["two"] == kept
    assert chosen["one"] not in (taken, kept)


def test_no_two_parts_share_a_port() -> None:
    chosen = choose_ports(dict.fromkeys(DEFAULT_PORTS, 0))
    assert len(set(chosen.values())) == len(DEFAULT_PORTS)
    assert all(chosen.values())


def test_a_port_wanted_twice_is_given_once() -> None:
    port = free_port()
    chosen = choose_ports({"one": port, "two": port})
    assert chosen["one"] == port != chosen["two"]
