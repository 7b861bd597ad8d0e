"""Runs plans in this process, without a JVM: sessions of ``Session.in_process()``, and the test driver."""
