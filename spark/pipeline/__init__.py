"""Flights and weather become topics over time; a stream joins them; a batch job reports."""
