from pysyncobj.config import SyncObjConf as SyncObjConf
from pysyncobj.syncobj import SyncObj as SyncObj
