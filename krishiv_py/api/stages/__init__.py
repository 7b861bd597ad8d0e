"""The builder: ``Stream → TimedStream → KeyedStream → WindowedStream → ResultStream``; one stage, one type, one file."""
