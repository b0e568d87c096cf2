"""Flights and weather become topics as they happen; a stream joins them; a batch job reports."""
