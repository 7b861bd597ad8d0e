"""The builder: ``Stream → TimedStream → KeyedStream → WindowedStream → AggregatedStream``; one stage, one type, one file."""
