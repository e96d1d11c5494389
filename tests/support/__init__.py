"""What the tests stand on: servers, waiting, ports, leak checks. It knows nothing of what is tested."""
