"""The KV cache: who owns which page, and where pages lie."""
