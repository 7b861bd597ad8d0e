"""Kafka: topics as a source that plans ranges of offsets, and as a transactional sink. Imports the interfaces next to it.

``client`` talks to the broker, ``settings`` and ``making`` check what was given, ``source`` plans, ``fetching`` reads ranges,
``formats`` make columns of values. confluent-kafka is loaded when it is first needed.
"""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
