"""The builder: ``Stream → TimedStream → KeyedStream → WindowedStream → ResultStream``; each stage is one type."""
