"""What tests share: servers in processes of their own, clients that see each byte, and faults."""
