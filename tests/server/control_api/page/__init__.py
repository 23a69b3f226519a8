"""Tests of `server/control_api/page`: of the document and all its panels, and of those with much to do, each by itself."""
