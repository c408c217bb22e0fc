#ifndef TTV_TESTS_GOLDEN_FAST_LACT_H
#define TTV_TESTS_GOLDEN_FAST_LACT_H

#include <cjson/cJSON.h>

#include "ttt/chunked.h"

/* Switches of a chunked layer from a case's configuration. */
Status fast_lact_rule(const cJSON *o, ChunkedRule *r);

#endif
