"""All file access of the pipeline, behind one port. Locations are URIs.

`port.Store` is the contract: list, read, create exclusively, replace, remove. It needs neither rename nor hard links,
so object stores satisfy it. `local.LocalStore` serves plain paths and `file:` URIs. `hadoop.HadoopStore` serves every
other scheme through the Hadoop client inside Spark's JVM (`hdfs:`, `s3a:`, `viewfs:` and so on). `stores.Stores` picks
one by scheme.
"""
