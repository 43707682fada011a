"""Raw files from public archives: planned from a small request, then downloaded so that nothing is fetched twice."""
