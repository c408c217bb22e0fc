/* Private to ttt/: comparing the sides of an identity. */
#ifndef TTV_TTT_IDENTITY_PARTS_H
#define TTV_TTT_IDENTITY_PARTS_H

#include "ttt/dense.h"
#include "ttt/identity.h"

/* Fills f64, layer, most and cosine; all arrays [n]. */
void identity_compare(IdentityResult *r, const double *production, const double *layer,
                      const double *attention, int64_t n);
/* Adds a control. */
void identity_control(IdentityResult *r, const char *name, const double *layer, const double *wrong,
                      int64_t n);
/* loss = -scale mean <f, v> and alignment at time `which`; f = f(k) and v [n,d]. */
void inner_measure(InnerLoop *r, int which, const double *f, const double *v, int64_t n, int64_t d,
                   double scale);
/* map [m,m] (mem_free, also after a failure) with U = map P (m rows) or, where r > c, U = P map' of
 * P [r,c]; m the smaller side. */
Status identity_muon_map(const NewtonSchulz *s, const double *p, int64_t r, int64_t c,
                         double **out);

#endif
