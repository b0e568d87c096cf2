"""Flights become a topic over time; a stream writes it to a Delta table, as typed columns."""
