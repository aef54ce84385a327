"""Knowledge about the SDKs of providers."""
