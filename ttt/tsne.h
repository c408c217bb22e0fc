/* Exact t-SNE (van der Maaten and Hinton 2008) of some hundred vectors, for pictures. */
#ifndef TTV_TTT_TSNE_H
#define TTV_TTT_TSNE_H

#include <stdint.h>

#include "core/status.h"

/* x [n,d] -> points [n,2]. Starts from the first two principal components; deterministic. n >= 3;
 * the perplexity is cut to (n - 1)/3. */
Status tsne(const double *x, int64_t n, int64_t d, double perplexity, int64_t iterations,
            double *points);
/* Affinities alone, for tests: p [n,n], each row's entropy log(perplexity) to 1e-5, then symmetric
 * with sum 1. `entropy` (may be NULL) [n] receives those of the rows. */
Status tsne_affinities(const double *x, int64_t n, int64_t d, double perplexity, double *p,
                       double *entropy);

#endif
