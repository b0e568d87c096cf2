//! topics-python
