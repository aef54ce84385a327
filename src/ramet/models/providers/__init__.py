"""What ramet must know of the SDKs of providers."""
