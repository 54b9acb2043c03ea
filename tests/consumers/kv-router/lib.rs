//! Holds a test: Dynamo's router follows the relay's KV events.
