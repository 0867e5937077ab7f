from mpmath import *
mp.dps=50
s=lambda v: nstr(v,17,min_fixed=-3,max_fixed=6)
Phi=lambda z: erfc(-mpf(z)/sqrt(mpf(2)))/2
print("normal")
for z in [-38.0,-20.3,-8.1,-5.1,-4.9,-1.7,-0.3,0.0,0.7,3.2,9.0]:
  p=Phi(z); print(f"({z}, {s(p)}, {s(log(p) if z<0 else log1p(-Phi(-z)))}, {s(npdf(mpf(z))/p)}),")
for z in [-40.0,-1e3]:
  lp=log(erfc(-mpf(z)/sqrt(mpf(2)))/2); print(f"({z}, {s(lp)}, {s(exp(-mpf(z)**2/2-log(2*pi)/2-lp))}),")
print("quantile")
for p in [1e-300,1e-20,1e-6,0.03,0.3,0.4999]:
  z=findroot(lambda z: log(Phi(z))-log(mpf(p)), -sqrt(-2*log(mpf(p))) if p<.1 else -sqrt(2)*erfinv(1-2*mpf(p))); print(f"({p}, {s(z)}),")
print("lgamma")
for x in [1e-3,0.3,0.99,1.5,2.01,33.3,1e4]: print(f"({x}, {s(loggamma(mpf(x)))}),")
print("gamma tails")
for a,x in [(0.1,0.05),(0.5,2.5),(5.5,0.055),(20,40),(200,100),(1000,968.375)]:
  P=gammainc(mpf(a),0,mpf(x),regularized=True) if a<500 else quad(lambda t: exp((a-1)*log(t)-t-loggamma(mpf(a))),linspace(mpf(600),x,20)); Q=gammainc(mpf(a),mpf(x),regularized=True) if a<500 else 1-P
  print(f"({a}, {x}, {s(P)}, {s(Q)}),")
print("beta tails")
def bi(a,b,x):
  a,b,x=mpf(a),mpf(b),mpf(x); return exp(log(x)*a+log1p(-x)*b+loggamma(a+b)-loggamma(a)-loggamma(b))/a*hyp2f1(a+b,1,a+1,x)
for a,b,x in [(0.5,0.5,0.125),(2,0.5,0.875),(5,30,0.25),(15,0.5,0.75),(100,200,0.125),(1000,1000,0.4375),(0.1,0.2,1e-8)]:
  print(f"({a}, {b}, {x}, {s(bi(a,b,x))}, {s(bi(b,a,1-mpf(x)))}),")
print("trunc normal 5..6 quantiles")
S=lambda z: Phi(-mpf(z))
for p in [1e-6,0.1,0.5,0.9,0.999]:
  t=S(5)-mpf(p)*(S(5)-S(6)); print(f"({p}, {s(findroot(lambda z: S(z)/t-1,(mpf('5.0000001'),mpf('5.9')),solver='anderson'))}),")
print("narrow normal(0,1e3) [1,1.001]")
a,b=mpf(1.0),mpf(1.001)
m=Phi(b/1000)-Phi(a/1000); print("mass",s(m))
for p in [0.25]:
  t=Phi(a/1000)+mpf(p)*m; print(s(findroot(lambda z: (Phi(z/1000)-t)/m, (a,b),solver='anderson')))
print("moments")
def mom(f,pts):
  Z=quad(f,pts); m=quad(lambda x:x*f(x),pts)/Z; v=quad(lambda x:(x-m)**2*f(x),pts)/Z; return s(m),s(sqrt(v))
print("normal(0,1,5,6)",mom(npdf,[5,5.5,6]))
print("normal(2,1,lower=0)",mom(lambda x:npdf(x,2,1),[0,2,4,inf]))
print("normal(0,1,lower=-8)",mom(lambda x:npdf(x,0,1),[-8,-4,-2,0,2,4,8,16,40]))
print("gamma(.5,1,.1,2)",mom(lambda x:x**mpf(-.5)*exp(-x),[mpf(.1),.5,1,2]))
print("gamma(.5,1,upper=2)",mom(lambda x:x**mpf(-.5)*exp(-x),[0,.5,1,2]))
print("beta(2,2,upper=.3)",mom(lambda x:x*(1-x),[0,mpf(.3)]))
print("t(3,0,1,lower=-1000)",mom(lambda x:(1+x*x/3)**-2,[-1000,-100,-10,-1,0,1,10,100,1000,10**5,inf]))
print("lognormal(0,1,upper=3)",mom(lambda x:exp(-log(x)**2/2)/x if x>0 else mpf(0),[0,.01,.1,.5,1,2,3]))
print("exp(1,lower=2)", 3,1)
