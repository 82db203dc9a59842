import os,sys,time
d=os.environ["FLEET_CHECKPOINT_DIR"]; rf=os.environ.get("FLEET_RESUME_FROM")
print("attempt",os.environ["FLEET_ATTEMPT"],"resume",rf,flush=True)
if rf:
    s=os.path.getsize(rf); print("size",s,"want 40960000",flush=True); sys.exit(0 if s==40960000 else 9)
def save(n,slow):
    with open(f"{d}/step-{n}.ckpt","wb",buffering=0) as f:
        for i in range(100):
            f.write(b"x"*409600)
            if slow and i==50: print("halfway",n,flush=True); time.sleep(600)
save(1,False); time.sleep(3); save(2,True)
