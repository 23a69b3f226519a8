"""Tests of `server/control_api/page`: of the document with all panels, and of three panels."""
