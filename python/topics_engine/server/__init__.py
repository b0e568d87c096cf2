"""What `topics serve` runs: the application of `asgi` under uvicorn, with protocols of its own."""
