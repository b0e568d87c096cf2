"""Shared by the tests: servers in separate processes, clients that see each byte, faults."""
