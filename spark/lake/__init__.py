"""Flights become a topic over time; streams write it to a Delta and an Iceberg table,
as typed columns."""
